"""Secrets in what other programs say, and what is none."""

import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.kafka.client_settings import jaas_quoted
from lakemark.settings.masking import MASK, Masks

WORDS = ["tables", "postgres", "hunter2", "errored", "2024", "task-merge"]
SURE = ["pa$$w0rd", "xK9-vQ2!", "a1b2c3", "correct horse battery staple", "s3cr/et", '12"34"']
IN_PLACE = [
    "postgresql://user:{}@host:5432/db is away",
    "GET http://host/x?password={}&a=b failed",
    "password={}",
    "sasl.password = {}; retries = 3",
    '{{"name": "x", "ssl.key.password": "{}"}}',
    "{{'aws_secret_access_key': '{}', 'region': 'eu'}}",
    "Authorization: Bearer token: {}",
]
ANYWHERE = ["invalid dsn: missing = after {} in it", "cannot use '{}'.", "({})", "{}", "{}, x"]


@pytest.mark.parametrize("secret", [*SURE, *WORDS])
@pytest.mark.parametrize("text", [*IN_PLACE, *ANYWHERE])
def test_none_comes_in_with_what_others_say(secret, text):
    for form in {secret, json.dumps(secret)[1:-1], quote(secret, safe="")}:
        found = Masks([secret]).foreign(text.format(form))
        assert MASK in found
        assert form not in found.removeprefix("postgresql")


@pytest.mark.parametrize("secret", ["lakemark", "xY1"])
@pytest.mark.parametrize("text", IN_PLACE)
def test_in_its_place_none_is_too_short_or_too_common(secret, text):
    assert secret not in Masks([secret]).foreign(text.format(secret))
    assert secret not in Masks([]).foreign(text.format(secret))


@pytest.mark.parametrize("secret", [*WORDS, "lakemark"])
def test_what_a_word_is_a_part_of_stays(secret):
    masks = Masks([secret])
    for text in (f"/opt/{secret}/x.py", f"io.{secret}.Thing", f"{secret}s", f"a_{secret}"):
        assert masks.foreign(text) == text


@pytest.mark.parametrize("secret", [*WORDS, "lakemark", "password"])
def test_our_own_words_stay(secret):
    text = (
        "lakemark status: 3 tables errored in 2024, task-merge of postgres; password: hunter2 is "
        "expected in database.password=..."
    )
    assert Masks([secret]).own(text) == text


def test_a_word_that_a_setting_shows_is_told_in_a_secret_place_only():
    masks = Masks(["shopkeeper"], ["postgresql://shopkeeper@db/shop"])
    refused = 'password authentication failed for user "shopkeeper"'
    assert masks.foreign(refused) == refused
    assert masks.foreign("postgresql://shopkeeper:shopkeeper@db") == (
        f"postgresql://shopkeeper:{MASK}@db"
    )


def test_short_secrets_do_not_blot_out_words():
    assert Masks(["a", "pw"]).foreign("a pw parrot") == "a pw parrot"


def test_a_secret_that_begins_with_another_is_masked_whole():
    assert Masks(["w0rd!x", "w0rd!xy-secret"]).own("a w0rd!xy-secret") == f"a {MASK}"


def test_unknown_secrets_in_a_secret_place():
    masks = Masks([])
    assert masks.own("s3://u:p@q@host/x") == f"s3://u:{MASK}@host/x"
    assert masks.foreign("token='a b' and 1") == f"token='{MASK}' and 1"
    assert masks.foreign("FATAL: password=x") == f"FATAL: password={MASK}"
    assert masks.foreign('x required username="u" password="p\\"q";') == (
        f'x required username="u" password="{MASK}";'
    )


@given(
    st.lists(st.text(min_size=6, max_size=20), min_size=1, max_size=3), *[st.text(max_size=20)] * 2
)
def test_a_secret_that_is_no_word_never_survives(secrets, before, after):
    sure = [secret for secret in secrets if not secret.isalnum() and not secret.isspace()]
    masks = Masks([*sure, "Xx9-" + sure[0] if sure else "Xx9-yy"])
    for secret in sure[:1]:
        hidden = "Xx9-" + secret
        for form in (hidden, jaas_quoted(hidden)[1:-1], json.dumps(hidden)[1:-1]):
            text = before.replace(MASK, "") + form + after.replace(MASK, "")
            assert MASK in masks.own(text)
            assert MASK in masks.foreign(text)


@given(st.text())
def test_masking_twice_is_masking_once(text):
    masks = Masks(["xK9-vQ2!", "tables"])
    once = masks.foreign(text)
    assert masks.foreign(once) == once


def test_a_long_text_takes_no_time():
    masks = Masks(["xK9-vQ2!", "tables"])
    for text in (
        "a" * 200_000,
        "a." * 100_000,
        "password" * 25_000,
        "://a" * 50_000,
        '"' * 200_000,
    ):
        masks.foreign(text)
