"""The report in a real browser: no errors, no network, readable on a phone and on paper, and true to its numbers."""

import csv
import html
import json
import re
import shutil
import sqlite3
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import confide
from confide import Refused
from confide.app import cli, report
from confide.app.report.effects import Effect
from confide.app.report.page import axis, number, percent
from confide.app.runs import attack as finished
from confide.app.runs import predictions, run_folder
from confide.app.runs.run_folder import Request
from confide.inference import settling
from confide.privacy.accountants import profile
from helpers.browser import browser, needs_browser
from helpers.mechanisms import simulated
from helpers.patients import HEADER, SCHEMA, rows, write

HOSTILE = '<script>alert("x")</script> & "y"'


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A run on a ledger, one with two chains and several labels, and one whose names are hostile."""
    folder = tmp_path_factory.mktemp("report")
    write(folder)
    ledger = confide.Ledger.create(folder / "ledger.db")
    ledger.enter("patients", confide.Budget(epsilon=4.0, delta=1e-4))
    common = {"data": str(folder / "patients.csv"), "epsilon": 2.0, "delta": 1e-5, "steps": 400, "draws": 100, "key": 5}
    common |= {"sampler": "sgld"}
    accounts = {"account": ("dp", "bayesian", "individual"), "stretch": 1.5, "histogram": 0.2}
    charged = {"ledger": str(ledger.path), "dataset": "patients"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONFIDE_STATE", str(folder / "state"))
        run_folder.fit(Request(schema=SCHEMA, out=str(folder / "run"), **common, **charged), verbose=False)
        run_folder.fit(
            Request(schema=SCHEMA, out=str(folder / "stages"), target="stage", chains=2, **accounts, **common),
            verbose=False,
        )
        text = (folder / "patients.csv").read_text().replace("smoker", HOSTILE.replace('"', "'"), 1)
        (folder / "hostile.csv").write_text(text)
        schema = SCHEMA.replace("[columns.smoker]", f"[columns.{json.dumps(HOSTILE.replace(chr(34), chr(39)))}]")
        hostile = common | {"data": str(folder / "hostile.csv")}
        run_folder.fit(Request(schema=schema, out=str(folder / "hostile"), **hostile), verbose=False)
    return folder


@pytest.fixture(scope="module")
def pages(home):
    return {
        "plain": report.write(home / "run"),
        "public": report.write(home / "run", home / "public.html", public=home / "patients.csv"),
        "held-out": report.write(home / "run", held_out=home / "patients.csv"),
        "stages": report.write(home / "stages"),
        "hostile": report.write(home / "hostile"),
        "audited": audited(home),
    }


def with_canaries(home, name, apart):
    """A copy of the run with canaries whose scores, in and out, lie so many standard deviations apart."""
    shutil.copytree(home / "run", home / name)
    generator = np.random.default_rng(1)
    told = simulated(generator, number=400)
    told = told._replace(scores=generator.normal(apart * told.inside, 1.0))
    (home / name / "canaries.json").write_text(json.dumps(told.to_json()))
    path = home / name / "plan.json"
    kept = json.loads(path.read_text())
    kept["plan"]["canaries"] = 400
    path.write_text(json.dumps(kept))
    return home / name


def audited(home):
    """A report with an audit by canaries, and one by rows."""
    run = with_canaries(home, "audited", 0.6)
    with (home / "others.csv").open("w", newline="") as file:
        csv.writer(file).writerows([HEADER, *rows(250, seed=5)])
    found = finished.attack_run(run, home / "patients.csv", home / "others.csv", drop_overlap=True)
    finished.save(found, finished.place(run))
    return report.write(run, audit=home / "audited-audit.json")


def test_what_single_records_spent_is_drawn_where_it_was_paid_for(home, pages):
    plan = json.loads((home / "stages" / "plan.json").read_text())["plan"]["individual"]
    text = pages["stages"].read_text()
    assert "What single persons spent" not in pages["plain"].read_text()
    assert "What single persons spent" in text
    assert text.count('class="column"') == len(plan["counts"]) == len(plan["edges"]) - 1
    for low, high, count in zip(plan["edges"][:-1], plan["edges"][1:], plan["counts"], strict=True):
        assert f"{number(low)} to {number(high)}: {max(0, count):,.0f} records" in text
    stored = "".join(path.read_text(errors="ignore") for path in (home / "stages").iterdir())
    assert "typical people" not in stored


@needs_browser
def test_in_a_browser(pages, tmp_path):
    """Light, dark, on a phone and on paper; every page."""
    with browser() as page:
        for name, path in pages.items():
            for width, dark in ((1200, False), (1200, True), (360, False)):
                page.open(path, width=width, dark=dark)
                assert page.value("document.documentElement.scrollWidth") <= width, name
                outside = page.value(
                    "[...document.querySelectorAll('main *')].filter(e => !e.closest('.wide') && !e.closest('.hidden')"
                    " && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML).join()"
                )
                assert outside == "", f"{name} at {width}: {outside[:300]}"
                small = page.value(
                    "[...document.querySelectorAll('main *')].filter(e => e.childNodes.length && "
                    "[...e.childNodes].some(n => n.nodeType == 3 && n.data.trim()) && !e.closest('svg') && "
                    "parseFloat(getComputedStyle(e).fontSize) < 12).map(e => e.outerHTML).join()"
                )
                assert small == "", f"{name} at {width}: {small[:300]}"
            contrast = page.value("getComputedStyle(document.body).backgroundColor")
            assert contrast == "rgb(255, 255, 255)"
            page.open(path, width=1200, dark=True)
            assert page.value("getComputedStyle(document.body).backgroundColor") != contrast
            page.printed(tmp_path / "page.pdf")
            assert (tmp_path / "page.pdf").read_bytes().count(b"/Type /Page\n") > 1
        assert page.problems == []
        assert set(page.requests) == {path.absolute().as_uri() for path in pages.values()}


class Outline(HTMLParser):
    """What a screen reader goes by."""

    def __init__(self, text):
        super().__init__()
        self.headings, self.images, self.named, self.ids = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids += [given["id"]] if "id" in given else []
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if given.get("role") == "img":
            self.images.append(given)
        if tag in ("script", "img", "iframe", "object", "base", "form"):
            raise AssertionError(f"{tag} in the page")
        for name in ("src", "href", "action"):
            assert given.get(name, "data:,").startswith(("data:", "#")), given


def test_every_plot_has_words_and_the_page_an_outline(pages):
    for path in pages.values():
        text = path.read_text()
        outline = Outline(text)
        assert outline.headings[0] == 1
        assert outline.headings.count(1) == 1
        assert all(after - before <= 1 for before, after in zip(outline.headings, outline.headings[1:], strict=False))
        assert len(outline.images) > 5
        for image in outline.images:
            words = image.get("aria-label") or all(name in outline.ids for name in image["aria-labelledby"].split())
            assert words, image
        assert len(set(outline.ids)) == len(outline.ids)
        assert "http://" not in text
        assert "https://" not in text


def test_names_from_the_table_are_text(pages):
    text = pages["hostile"].read_text()
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


def test_what_it_says_is_what_was_computed(home, pages):
    posterior, schema = run_folder.load(home / "run")
    made = report.gather(posterior, schema)
    weights = posterior.draws["weights"].reshape(-1, len(schema.features)).astype(np.float64)
    (group,) = made.groups
    by_name = {effect.name: effect for effect in group.effects}
    for i, name in enumerate(schema.features):
        draws = weights[:, i]
        sexes = weights[:, [schema.features.index(f"sex={label}") for label in ("female", "male", "(other)")]].mean(
            axis=1
        )
        if name in ("age", "smoker", "stage"):
            draws = 2 * draws  # from one end of its range to the other
        elif name.startswith("sex"):
            draws = draws - sexes  # against the mean of its kind
        elif name == "intercept":
            draws = draws + sexes
        assert np.isclose(by_name[name].mean, draws.mean())
        low, high = np.quantile(draws, [0.05, 0.95])
        assert np.allclose((by_name[name].low, by_name[name].high), (low, high))
    assert by_name["age"].meaning == "from 0 to 120 years"
    assert by_name["stage"].meaning == "from I to IV"
    assert made.odds[-1].before == 0.5
    assert posterior.guarantee.belief < made.odds[-1].after < posterior.guarantee.belief + 0.06
    assert 0.5 < made.success < 0.75
    text = pages["plain"].read_text()
    assert f"<strong>{percent(made.success)}</strong>" in text
    assert number(by_name["stage"].mean) in text
    assert "Receipt" in text
    for sentence in posterior.guarantee.assumptions:
        assert sentence.split("'")[0][:60].replace("'", "&#39;") in text
    json.dumps(made.to_json())


def test_held_out_rows_are_kept_out_of_what_may_be_published(home, pages):
    assert pages["held-out"] == home / "run-held-out-report.html"
    assert "Not for publication" in pages["held-out"].read_text()
    assert "Not for publication" not in pages["public"].read_text()
    with pytest.raises(Refused, match="lies in the run"):
        report.write(home / "run", home / "run" / "inside.html", held_out=home / "patients.csv")
    posterior, schema = run_folder.load(home / "run")
    judged = predictions.evaluate(posterior, schema, home / "patients.csv")
    shown = percent(judged.scores["accuracy"])
    assert shown in pages["held-out"].read_text()
    assert "<dt>Accuracy</dt>" not in pages["plain"].read_text()


def test_an_audit_by_rows_is_kept_out_of_what_may_be_published(home, pages):
    assert pages["audited"] == home / "audited-audit-report.html"
    assert pages["audited"].stat().st_mode & 0o077 == 0
    text = pages["audited"].read_text()
    assert "Not for publication" in text
    assert "By canaries" in text
    assert "By records" in text
    record = json.loads((home / "audited-audit.json").read_text())
    for attack in (record["audit"]["scores"], *record["attacks"]):
        assert f'{attack["name"]}</th><td class="n">{attack["auc"]:.3f}</td>' in text
    with pytest.raises(Refused, match="lies in the run"):
        report.write(home / "audited", home / "audited" / "x.html", audit=home / "audited-audit.json")
    with pytest.raises(Refused, match="another run"):
        report.write(home / "stages", audit=home / "audited-audit.json")


@pytest.mark.parametrize(("apart", "colour"), [pytest.param(0.0, "good", marks=pytest.mark.long), (9.0, "bad")])
def test_what_an_audit_shows_is_what_was_found(home, apart, colour):
    """By canaries alone, which may be published."""
    posterior, schema = run_folder.load(with_canaries(home, f"apart-{apart:g}", apart))
    audit, made = confide.audit(posterior), report.gather(posterior, schema)
    (shown,), text = made.evidence, report.render(made)
    assert not made.confidential
    assert ("Do not publish this run" in text) == made.refuted == (colour == "bad")
    assert ("which may be published" in text) != made.refuted
    assert "Not for publication" not in text
    assert f'class="verdict {colour}"' in text
    assert shown.sentence in audit.sentences()
    marks = {mark.kind: mark.epsilon for mark in shown.marks}
    assert marks["claim"] == audit.claimed
    assert marks["reach"] == audit.reach
    assert [mark.epsilon for mark in shown.marks if mark.kind == "shown"] == [audit.bound]
    assert (audit.bound > audit.tested) == (audit.verdict == "claim refuted") == ("shown above" in text)
    priced = profile(posterior.guarantee.event, posterior.guarantee.neighbours, posterior.guarantee.accountant)
    rates, most = np.array(shown.allowed).T
    allowed = 1 - priced.trade_off(np.append(rates, shown.rates))
    assert np.allclose(most, allowed[: len(rates)])
    above = np.array(shown.low) > allowed[len(rates) :] + 1e-9
    assert np.all(most >= rates)
    assert sum(shown.member_counts) == shown.members == len(audit.scores.members)
    assert ("VIOLATION" in text) == np.any(above) == (colour == "bad")
    assert "95% confidence" not in text.split('id="audit"')[1].split("</section>")[0]


def test_without_an_audit_the_page_says_how_to_get_one(pages):
    text = pages["plain"].read_text()
    assert "Here is how we checked" in text
    assert "No attack was tried" in text


def test_the_ledger_as_it_is_now(home, tmp_path):
    report.write(home / "run", tmp_path / "then.html")
    confide.Ledger(home / "ledger.db").charge("patients", confide.events.Release(epsilon=0.5), note="a count")
    now = report.write(home / "run", tmp_path / "now.html", ledger=home / "ledger.db").read_text()
    assert "was left" in (tmp_path / "then.html").read_text()
    left = confide.Ledger(home / "ledger.db").left("patients")
    assert 0.3 < left.share < 0.45
    assert f"Now, <strong>{percent(left.share)}</strong> is left: ε {left.epsilon:.3g}" in now
    with pytest.raises(Refused, match="not charged"):
        report.write(home / "stages", ledger=home / "ledger.db")


def test_a_ledger_without_the_charge_of_the_run_is_refused(home, tmp_path):
    """Cut off with its seal and the triggers put back: the file alone shows nothing, the run does."""
    path = tmp_path / "cut.db"
    shutil.copy(home / "ledger.db", path)
    report.write(home / "run", tmp_path / "before.html", ledger=path)
    connection = sqlite3.connect(path, isolation_level=None)
    for table, since in (("charges", 1), ("seals", 2)):
        (trigger,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", (f"{table}_stay",)).fetchone()
        connection.execute(f"DROP TRIGGER {table}_stay")
        connection.execute(f"DELETE FROM {table} WHERE id >= {since}")
        connection.execute(trigger)
    connection.close()
    ledger = confide.Ledger(path)
    assert ledger.left("patients").share == 1
    with pytest.raises(Refused, match=r"is not in ledger .* as it was made: rows were cut off"):
        report.write(home / "run", tmp_path / "after.html", ledger=path)
    receipt = run_folder.load(home / "run")[0].plan["ledger"]["receipt"]
    ledger.charge("patients", confide.events.Release(epsilon=1e-3), receipt=receipt)
    with pytest.raises(Refused, match=r"is not in ledger .* as it was made: rows were cut off"):
        report.write(home / "run", tmp_path / "after.html", ledger=path)


def test_several_chains_and_labels(home, pages):
    posterior, schema = run_folder.load(home / "stages")
    made = report.gather(posterior, schema)
    assert [group.name for group in made.groups] == ["I", "II", "III", "IV"]
    assert all(effect.r_hat is not None for group in made.groups for effect in group.effects)
    weights = posterior.draws["weights"].astype(np.float64)
    weights -= weights.mean(axis=-1, keepdims=True)  # what all labels share no record tells
    (smoker,) = [effect for effect in made.groups[2].effects if effect.name == "smoker"]
    assert np.isclose(smoker.mean, 2 * weights[..., schema.features.index("smoker"), 2].mean())
    assert "R-hat over 2 chains" in pages["stages"].read_text()


def test_a_run_without_a_guarantee_has_no_report(home):
    posterior, schema = run_folder.load(home / "run")
    with pytest.raises(Refused, match="no guarantee"):
        report.gather(replace(posterior, guarantee=None), schema)
    shutil.copytree(home / "run", home / "broken")
    (Path(home) / "broken" / "schema.toml").unlink()
    with pytest.raises(Refused, match="does not hold a run"):
        report.write(home / "broken")


def walks(chains=1, columns=8, seed=0):
    """Draws that have not gone far."""
    return 0.05 * np.cumsum(stays(chains, columns, seed), axis=1)


def stays(chains=1, columns=8, seed=0):
    """Independent draws about 0.37."""
    return 0.37 + 0.1 * np.random.default_rng(seed).normal(size=(chains, 400, columns))


FINE = {
    "clipping": "weighted", "clip": 0.5, "row_bound": 2.0, "lag_one": 0.5, "prior_scale": 1.0,
    "epsilon": 2.0, "budget": {"epsilon": 2.0, "delta": 1e-5, "neighbours": "add-remove"},
}  # fmt: skip
WHOLE = {  # causes that leave no interval: draws, what the plan says, and the first reason
    "jumps": (stays(), {"lag_one": -0.6}, "oscillation"),
    "walks": (walks(), {}, "exploration"),
    "far away": (stays() + 9.0, {}, "runaway"),
    "a plain clip": (stays(), {"clipping": "plain"}, "bends"),
    "q moves": (stays(), {"sampler": "dpvi", "drift": 1.6}, "drift"),
    "chains apart": (
        stays(4) + np.arange(4)[:, None, None] * np.array([1, 2, 1, -1.5, 0.2, 1, -2, 1]),
        {},
        "disagreement",
    ),
}


def like(home, draws, told):
    """The run with other draws, and with what its plan says otherwise."""
    posterior, schema = run_folder.load(home / "run")
    plan = posterior.plan | FINE | {"chains": draws.shape[0], "draws": draws.shape[1]} | told
    return replace(posterior, draws={"weights": draws.astype(np.float32)}, plan=plan), schema


def section(page, name):
    """The words of a section, as a reader sees them, and its HTML."""
    own = page.split(f'aria-labelledby="{name}"')[1].split("</section>")[0]
    return " ".join(html.unescape(re.sub("<[^>]*>", " ", own)).split()), own


def test_draws_that_have_settled_are_shown_with_intervals(home):
    posterior, schema = like(home, stays(), {})
    made = report.gather(posterior, schema)
    page = report.render(made)
    words, own = section(page, "posterior")
    assert made.settled is True
    assert made.reasons == []
    assert own.count('class="thin"') == own.count('class="thick"') == 7  # all but the intercept
    for effect in made.groups[0].effects:
        assert effect.interval
        assert f"{number(effect.low)} to {number(effect.high)}" in words
    assert "90% interval" in words
    assert "P(> 0)" in words
    assert "1 draws" not in words
    assert "Nothing to worry about." in page
    assert "bounded by a weight that does not depend on the outcome" in page
    assert "rows longer than 2 count less" in section(page, "sampler")[0]


@pytest.mark.parametrize("cause", WHOLE)
def test_what_has_not_settled_is_shown_without_an_interval(home, cause):
    draws, told, kind = WHOLE[cause]
    posterior, schema = like(home, draws, told)
    made = report.gather(posterior, schema)
    page = report.render(made)
    words, own = section(page, "posterior")
    assert made.settled is False
    assert made.reasons[0].kind == kind
    assert settling.DRAWS[kind] in words
    for reason in made.reasons:
        assert reason.sentence in words
        assert words.count(reason.advice) == 1
    for sign in ("thin", "thick", "range", "chance"):
        assert re.search(rf'class="[^"]*\b{sign}\b', own) is None
    assert "90%" not in html.unescape(own)
    assert "P(" not in words
    assert "interval" not in words.replace("These draws give no intervals.", "")
    (group,) = made.groups
    for effect in group.effects:
        assert not effect.interval
        assert f"{number(effect.low)} to {number(effect.high)}" not in words
        row = own.split(f">{effect.name}<small>")[1].split("</tr>")[0]
        assert number(effect.mean) in row
        assert number(effect.low) != number(effect.mean)
        assert f">{number(effect.low)}<" not in row
    judged, table = section(page, "sampler")
    assert "Nothing to worry about" not in page
    assert 'class="verdict bad"' in table
    for effect in group.effects:  # nor as a standard deviation
        cells = re.findall(f'<th scope="row">{re.escape(effect.name)}</th>(.*?)</tr>', table)
        assert [re.findall("<td[^>]*>(.*?)</td>", cell)[1] for cell in cells] == ["–"]  # noqa: RUF001
    assert "A private posterior" not in page
    assert "Here is the posterior" not in page
    assert "posterior draws" not in page
    record = json.loads(json.dumps(made.to_json()))
    assert record["settled"] is False
    assert record["reasons"][0]["kind"] == kind
    assert "smaller clip" not in page
    assert "--chains" not in words + judged


def test_some_coefficients_have_intervals_and_some_have_not(home):
    names = run_folder.load(home / "run")[1].features
    draws = stays()
    draws[..., names.index("smoker")] = walks()[..., 0]
    made = report.gather(*like(home, draws, {}))
    page = report.render(made)
    words, own = section(page, "posterior")
    assert made.settled is False
    assert [reason.concerns for reason in made.reasons] == [("smoker",)]
    assert own.count('class="thin"') == own.count('class="thick"') == 6
    for effect in made.groups[0].effects:
        row = own.split(f">{effect.name}<small>")[1].split("</tr>")[0]
        shown = f"{number(effect.low)} to {number(effect.high)}" in row
        assert shown == effect.interval == (effect.name != "smoker")
        assert ("centre of the draws" in own.split(f'aria-label="{effect.name}: ')[1][:40]) == (not effect.interval)
    assert "Some coefficients have no interval. Of these, the draws are where the chain was" in words
    assert "1 of 8 coefficients have not settled." in page
    assert "Nothing to worry about" not in page
    last = re.findall('<th scope="row">([^<]*)<small>', own)[-2:]
    assert last == ["smoker", "intercept"]


def test_draws_too_few_to_judge_have_no_intervals(home):
    made = report.gather(*like(home, stays(4)[:, :2], {}))
    words, own = section(report.render(made), "posterior")
    assert made.settled is None
    assert "nothing tells whether it has settled" in words
    assert 'class="thin"' not in own
    assert "90%" not in words


def test_the_clip_of_a_network_is_remarked_on(home):
    posterior, schema = like(home, stays(), {"model": "mlp", "clipping": "plain"})
    made = report.gather(replace(posterior, model=None), schema)
    words, _ = section(report.render(made), "sampler")
    assert made.settled is None
    assert made.verdict.words == "Not checked."
    assert "The clip bends:" in words
    assert "A longer clip would bend less; a larger budget pays for one." in words


@pytest.mark.parametrize(("draws", "told"), [(stays(), {}), (walks(), {}), (stays(), {"clipping": "plain"})])
def test_predictions_have_intervals_where_the_draws_have(home, tmp_path, draws, told, capsys, monkeypatch):
    posterior, schema = like(home, draws, told)
    posterior.save(tmp_path / "run", {run_folder.SCHEMA: schema.to_toml()})
    out, settled = tmp_path / "told.csv", posterior.settled
    asked = ["confide", "predict", str(tmp_path / "run"), str(home / "patients.csv"), "--out", str(out)]
    monkeypatch.setattr("sys.argv", asked)
    with pytest.raises(SystemExit):
        cli.main()
    printed = capsys.readouterr().out
    assert ("with 90% intervals" in printed) == settled
    assert ("have not settled, and give no intervals" in printed) == (not settled)
    for line in out.read_text().splitlines()[1:]:
        assert line.endswith(",,") == (not settled)


def test_numbers_are_shown_as_a_reader_expects():
    assert [percent(value) for value in (0.5, 0.99999, 1.0, 0.123)] == ["50.0%", "over 99.9%", "100.0%", "12.3%"]
    assert [number(value) for value in (1234.5, -0.5, 0.001, None)] == ["1,234", "−0.50", "0.001", "–"]  # noqa: RUF001
    one = Effect("a", "", 1.0, 0.1, 0.8, 1.2, 0.9, 1.1, 1.0, 50.0, None)
    scale = axis([one, one._replace(low=-3.3)])
    assert scale["low"] <= -3.3
    assert scale["high"] >= 1.2
    assert 3 <= len(scale["ticks"]) <= 9
