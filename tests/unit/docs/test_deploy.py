"""The board for Grafana and the rules for Prometheus ask for metrics and labels that there are."""

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.kit.site import Site

DEPLOY = Path(__file__).parents[3] / "deploy"
_SELECTOR = re.compile(r"(lakemark_[a-z_]+)(?:\{([^}]*)\})?")
_ADDED = {"job", "instance"}  # by Prometheus itself


@pytest.fixture(scope="module")
def samples() -> dict[str, list[dict[str, str]]]:
    """Labels by name of every sample that a real answer has."""
    site = Site()
    site.stream()
    found: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(site.get("/metrics").text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def rules() -> list[dict]:
    (group,) = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]
    return group["rules"]


def panels() -> list[dict]:
    return json.loads((DEPLOY / "grafana.json").read_text())["panels"]


def expressions() -> list[str]:
    shown = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [*shown, *(rule["expr"] for rule in rules())]


@pytest.mark.parametrize("expression", expressions())
def test_every_expression_finds_samples(samples, expression):
    asked = _SELECTOR.findall(expression)
    assert asked
    for name, selector in asked:
        assert name in samples, f"there is no {name}"
        for label, value in re.findall(r'(\w+)=~?"([^"]*)"', selector):
            values = {labels.get(label) for labels in samples[name]}
            assert label in _ADDED or value in values, f"{name} has no {label}={value}"


def test_labels_in_texts_are_there(samples):
    for rule in rules():
        ((name, _), *_) = _SELECTOR.findall(rule["expr"])
        for text in rule["annotations"].values():
            for label in re.findall(r"\$labels\.(\w+)", text):
                assert label in _ADDED or all(label in one for one in samples[name])


def test_alerts_say_what_happened_and_what_to_do():
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert set(rule["annotations"]) == {"summary", "description"}


def test_every_metric_of_a_table_state_is_watched():
    text = " ".join(rule["expr"] for rule in rules())
    assert 'state="errored"' in text
    assert 'state="paused"' in text


def test_panels_do_not_lie_over_each_other():
    taken = set()
    for panel in panels():
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells
