"""The views of a cut, as Spark reads them."""

import pytest
from typer.testing import CliRunner

from lakemark.cli.cli import app
from tests.kit.cut_site import A, B, CutSite, cut

pytestmark = pytest.mark.spark


def test_views_of_a_cut_have_its_versions(spark, tmp_path, monkeypatch):
    folder = tmp_path / "it`s a lake"
    folder.mkdir()
    site = CutSite(folder)
    for table, batches in ((A, (10, 20, 31)), (B, (9, 20, 33))):
        for batch in batches:
            site.commit(table, batch)
    site.keep(in_state=[cut(1), cut(2), cut(3, batch=31)])
    monkeypatch.chdir(folder)
    for at, expected in (("0/100", (10, 9)), ("0/200", (20, 20)), ("latest", (31, 20))):
        told = CliRunner().invoke(
            app, ["cut", "--sql", "spark", "--at", at, "-c", str(folder / "lakemark.yaml")]
        )
        assert told.exit_code == 0, told.output
        for line in told.output.splitlines():
            if line.startswith("CREATE"):
                spark.sql(line)
        found = [spark.table(f"`{table}`").collect()[0]["batch"] for table in (A, B)]
        assert tuple(found) == expected
