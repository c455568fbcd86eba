"""Tokens of AWS IAM for librdkafka's clients; Java's have a jar of AWS's for it.

The signer is AWS's own, in the extra `msk-iam`. It finds credentials as all of AWS's clients do:
the environment, profiles, a role of the machine or of the Kubernetes account. Nothing is asked over
the network but for those; a token is a signed address, good for fifteen minutes.
"""

import importlib.util
from dataclasses import dataclass
from typing import Final

SIGNER: Final = "aws_msk_iam_sasl_signer"


@dataclass(frozen=True, slots=True)
class MskIamToken:
    """The `oauth_cb` of a client: a new token whenever the last one is about to expire.

    Args:
        region: the cluster's.
    """

    region: str

    def __call__(self, _config: str = "") -> tuple[str, float]:
        """The token, and when it expires, in seconds since the epoch."""
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider  # noqa: PLC0415 - an extra

        token, expires_ms = MSKAuthTokenProvider.generate_auth_token(self.region)
        return str(token), expires_ms / 1000


def is_installed() -> bool:
    """Say whether the signer is there."""
    return importlib.util.find_spec(SIGNER) is not None
