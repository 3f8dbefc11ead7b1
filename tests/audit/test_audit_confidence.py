"""A question that no number of trials can answer is refused before anything is trained."""

import pytest

from coalmine.adversaries import adversary
from coalmine.auditing import config
from coalmine.auditing.run import audit, planned
from coalmine.store import Store
from coalmine.store.listing import audits


def test_a_confidence_beyond_reach_is_found_before_training(tmp_path):
    with pytest.raises(ValueError, match="too high for these tests"):
        audit(config.load(overrides=["audit.confidence=0.99999999"]), store=tmp_path / "a.db")
    with Store.open(tmp_path / "a.db") as store:
        assert (store.runs(), audits(store)) == ((), ())


def test_settings_may_be_plain_data_or_a_file(tmp_path):
    tree = {"audit": {"confidence": 0.99999999}}
    (tmp_path / "audit.toml").write_text("[audit]\nconfidence = 0.99999999\n", encoding="utf-8")
    for settings in (tree, tmp_path / "audit.toml", str(tmp_path / "audit.toml")):
        with pytest.raises(ValueError, match="too high for these tests"):
            audit(settings, store=tmp_path / "a.db")


@pytest.mark.parametrize("confidence", [0.9999, 0.999999])
def test_what_is_said_of_a_confidence_is_what_an_audit_has(settings, confidence):
    """No threshold rules, no fewer attacks than one; and the confidence that it names is taken."""
    one = settings(audit={"confidence": confidence})
    with pytest.raises(ValueError, match=rf"confidence = {confidence} is too high .* at most 0\.999838$"):
        planned(one)
    planned(settings(audit={"confidence": 0.999838}))
    two = settings(audit={"confidence": confidence}, adversaries=({"name": "clipbkd"}, {"name": "membership"}))
    with pytest.raises(ValueError, match=r"at most 0\.999676 \(of 2 attacks together; fewer attacks allow more\)"):
        planned(two)


def test_scores_of_the_same_trainings_share_the_level(play, settings, trained):
    """Two attacks by the cost of one, in the audit and its control; each has half of what one alone has."""
    options = {"statistic": "both", "shadows": 2, "ascent_steps": 1, "shadow_data": "base"}
    poison = {"name": "intermediate-poison", **options}
    result = play(settings(audit={"control": True}, adversaries=[poison]))
    assert len(trained) == 2 * 64 // 16
    assert [one.attack.options["score"] for one in result.adversaries] == ["mean", "max"]
    assert len({one.run for one in result.adversaries}) == 1
    level = 1.0 - result.config.audit.confidence
    for one in result.adversaries:
        assert 1.0 - one.bound.confidence == pytest.approx(level / 2)
        assert one.judgement.level == pytest.approx(level / 2)
        assert one.judgement.control is False
    assert result.adversaries[0].scores.world0.tolist() != result.adversaries[1].scores.world0.tolist()


def test_an_adversary_is_listed_once(play, settings, trained):
    with pytest.raises(ValueError, match=r"adversary clipbkd \(copies=2\) is there twice"):
        play(settings(adversaries=[{"name": "clipbkd", "copies": 2}] * 2))
    words = r"adversary clipbkd \(copies=1\) is there twice \(it comes to the same as clipbkd\)"
    with pytest.raises(ValueError, match=words):
        play(settings(adversaries=[{"name": "clipbkd"}, {"name": "clipbkd", "copies": 1}]))
    assert not trained


def test_an_adversary_from_python_shows_its_options(play, settings):
    result = play(settings(), adversaries=[adversary("clipbkd", copies=3), "clipbkd"])
    assert [one.label for one in result.adversaries] == ["clipbkd (copies=3)", "clipbkd"]


def test_a_control_is_advised_where_none_was_played(play, settings):
    """A score that tells nothing: with a control there is no word of playing one."""
    blind = {"name": "intermediate-poison", "shadows": 2, "ascent_steps": 0, "shadow_data": "base"}
    found = {}
    for control in (False, True):
        result = play(settings(audit={"control": control, "trials": 128}, adversaries=[blind]))
        found[control] = " ".join(result.verdict.reasons)
    assert "--control" in found[False]
    assert "--control" not in found[True]
    assert "the positive control was not caught" in found[True]
