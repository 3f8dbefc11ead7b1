"""One training, many canaries, a fair coin for each: an audit that costs one training.

============================  ==========================================================================================
module                        what it gives
============================  ==========================================================================================
:mod:`.canaries`              rows or gradients that may be included: kinds by name
:mod:`.design`                what is fixed before a score is seen: claim, confidence, numbers of guesses, method
:mod:`.guesses`               the numbers of guesses for a claim, and what they can refute
:mod:`.begin`                 coins, the rows to train on and the verdict inside one program
:mod:`.seal`                  coins under seal: files for the training, for the scorer, for the judge
:mod:`.judge`                 from scores and coins to a verdict and lower bounds
:mod:`.likelihood`            what the sums of every step say about each gradient
:mod:`.step_noise`            whether the noise of every step is there
:mod:`.planning`              how many canaries
:mod:`.advice`                what to do next where a run can say nothing
:mod:`.section`               a result as data for a report
:mod:`.game`                  the game on our own trainer                                                        (torch)
:mod:`.trainings`             its trainings, one by one or as blocks of an audit                                 (torch)
:mod:`.adversaries`           one run as adversaries of ``coalmine audit``                                       (torch)
:mod:`.hooks`                 gradient canaries in a training with Opacus                                        (torch)
============================  ==========================================================================================

NumPy and SciPy are enough for all but the last four.
"""

from coalmine.one_run.begin import OneTraining, begin
from coalmine.one_run.canaries import Canaries, GradientCanaries, RowCanaries
from coalmine.one_run.design import Design, design
from coalmine.one_run.judge import OneRunResult, judge
from coalmine.one_run.planning import Forecast, forecast, forecasts, least_canaries
from coalmine.one_run.seal import Prepared, judge_folder, prepare
from coalmine.one_run.section import section

__all__ = [
    "Canaries",
    "Design",
    "Forecast",
    "GradientCanaries",
    "OneRunResult",
    "OneTraining",
    "Prepared",
    "RowCanaries",
    "begin",
    "design",
    "forecast",
    "forecasts",
    "judge",
    "judge_folder",
    "least_canaries",
    "prepare",
    "section",
]
