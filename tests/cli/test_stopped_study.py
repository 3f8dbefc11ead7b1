"""What a study says when it is stopped: not all studies store something."""

from coalmine import cli, studies


def test_a_stopped_study_promises_no_more_than_is_stored(monkeypatch, capsys, tmp_path):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(studies, "run_cells", interrupted)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["study", "run", "pradhan-2026/s1"]) == 130
    said = " ".join(capsys.readouterr().err.split())
    assert "finished trials are stored" not in said
    assert "cells without trials are computed anew" in said
