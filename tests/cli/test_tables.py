"""Tables for people: they fit the terminal, and no number or name is cut off."""

import pytest

from coalmine.cli._output import print_table

CELLS = [[f"digits,epsilon={epsilon}", *(f"{value}.25" for value in range(7))] for epsilon in (1, 10)]
COLUMNS = ["cell", "proved", "if Gaussian", "if DP-SGD", "if last iterate", "heuristic", "guarantee", "accuracy"]


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_every_value_is_there_whole_within_the_width(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    print_table("A title that is longer than the table under it", COLUMNS, CELLS)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    for value in [value for row in CELLS for value in row] + [word for name in COLUMNS for word in name.split()]:
        assert value in words
    assert "…" not in "".join(lines)


def test_a_title_takes_the_whole_width(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    title = "Malicious data set: the lower bound of the strongest adversary"
    print_table(title, ["cell", "published"], [["epsilon=1", "-"]])
    assert capsys.readouterr().out.splitlines()[0] == title


def test_columns_that_do_not_fit_go_into_a_second_table_with_the_names_again(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    print_table("Title", COLUMNS, CELLS)
    assert capsys.readouterr().out.count("digits,epsilon=10") == 2


def test_long_headers_give_way_before_sentences(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "44")
    print_table("Title", ["name", "a long header", "words"], [["x", "1", "a sentence of 24 letters"]])
    assert "a sentence of 24 letters" in capsys.readouterr().out


def test_an_empty_table(monkeypatch, capsys):
    print_table("Title", ["one", "two"], [])
    assert "two" in capsys.readouterr().out


def test_brackets_are_text(monkeypatch, capsys):
    print_table("Title", ["one", "two"], [["[bold]", "x"]])
    assert "[bold]" in capsys.readouterr().out
