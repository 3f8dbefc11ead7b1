"""Other people's trainers: plain functions (:func:`audit_function`), and Opacus (``coalmine.integrations.opacus``)."""

from coalmine.integrations.functions import audit_function, load_function, load_worlds, parse_dpsgd
from coalmine.integrations.stored import stored_result
from coalmine.integrations.worlds import Worlds, neighbours

__all__ = ["Worlds", "audit_function", "load_function", "load_worlds", "neighbours", "parse_dpsgd", "stored_result"]
