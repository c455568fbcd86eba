"""The ways in which clients prove who they are to Kafka: passwords, certificates, tokens."""

from collections.abc import Mapping
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from lakemark.settings.section import Section
from lakemark.settings.units import ExistingFile, FreeMap, HttpUrl, Secret, Text

OAUTHBEARER: Final = "OAUTHBEARER"
AWS_MSK_IAM: Final = "AWS_MSK_IAM"
_PASSWORD: Final = ("sasl_username", "sasl_password")
_TOKEN: Final = (
    *("sasl_oauthbearer_token_endpoint_url", "sasl_oauthbearer_client_id"),
    "sasl_oauthbearer_client_secret",
)
# What belongs to each mechanism: that which it needs, and that which it may have.
_NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"), _PASSWORD),
    OAUTHBEARER: _TOKEN,
    AWS_MSK_IAM: ("sasl_aws_region",),
}
_MAY_HAVE: Final[Mapping[str, tuple[str, ...]]] = {
    OAUTHBEARER: (
        *("sasl_oauthbearer_scope", "sasl_oauthbearer_extensions"),
        "sasl_oauthbearer_ca_location",
    ),
}


class SecurityConfig(Section):
    """Proof of who the clients are, for Kafka; written once, given to the Java client and ours."""

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="how the brokers are spoken to"
    )
    sasl_mechanism: (
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"] | None
    ) = Field(
        None, description="needed with SASL_…, unless both clients are given one of their own"
    )
    sasl_username: Text | None = Field(None, description="user, for PLAIN and SCRAM")
    sasl_password: Secret | None = Field(None, description="its password")
    sasl_oauthbearer_token_endpoint_url: HttpUrl | None = Field(
        None, description="where OAUTHBEARER asks for tokens (OIDC, client credentials)"
    )
    sasl_oauthbearer_client_id: Text | None = Field(None, description="who asks for a token")
    sasl_oauthbearer_client_secret: Secret | None = Field(None, description="its secret")
    sasl_oauthbearer_scope: Text | None = Field(None, description="scope of the token")
    sasl_oauthbearer_extensions: FreeMap = Field(
        {}, description="what the brokers want beside the token, such as logicalCluster"
    )
    sasl_oauthbearer_ca_location: ExistingFile | None = Field(
        None, description="PEM file of authorities that the token endpoint is trusted by"
    )
    sasl_aws_region: Text | None = Field(
        None, description="of the cluster, for AWS_MSK_IAM; credentials as AWS's clients find them"
    )
    ssl_ca_location: ExistingFile | None = Field(
        None, description="PEM file of trusted authorities"
    )
    ssl_certificate_location: ExistingFile | None = Field(None, description="PEM certificate chain")
    ssl_key_location: ExistingFile | None = Field(None, description="PEM private key, PKCS#8")
    ssl_key_password: Secret | None = Field(None, description="of the private key")
    ssl_endpoint_identification: Literal["https", "none"] = Field(
        "https", description="none accepts a certificate of any host name"
    )

    @property
    def is_sasl(self) -> bool:
        """True if clients say who they are by SASL."""
        return self.security_protocol.startswith("SASL")

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        self._sasl()
        if bool(self.ssl_certificate_location) != bool(self.ssl_key_location):
            raise PydanticCustomError(
                "security", "ssl_certificate_location and ssl_key_location need each other"
            )
        if self.ssl_ca_location and "SSL" not in self.security_protocol.split("_"):
            raise PydanticCustomError(
                "security", "ssl_ca_location is set, so security_protocol must be SSL or SASL_SSL"
            )
        return self

    def _sasl(self) -> None:
        given = [n for n in type(self).model_fields if n.startswith("sasl_") and getattr(self, n)]
        if given and not self.is_sasl:
            raise PydanticCustomError(
                "security",
                "{name} is set, so security_protocol must be SASL_SSL or SASL_PLAINTEXT",
                {"name": given[0]},
            )
        mechanism = self.sasl_mechanism
        needed = _NEEDS[mechanism] if mechanism else ()
        missing = [name for name in needed if name not in given]
        odd = [n for n in given if n not in {"sasl_mechanism", *needed, *self._may_have()}]
        if missing:
            raise PydanticCustomError(
                "security",
                "{mechanism} needs {names}",
                {"mechanism": mechanism, "names": ", ".join(missing)},
            )
        if odd:
            raise PydanticCustomError(
                "security",
                "{name} is of no use with {mechanism}",
                {"name": odd[0], "mechanism": mechanism or "no sasl_mechanism"},
            )
        if mechanism == AWS_MSK_IAM and self.security_protocol != "SASL_SSL":
            raise PydanticCustomError("security", "AWS_MSK_IAM needs security_protocol SASL_SSL")

    def _may_have(self) -> tuple[str, ...]:
        return _MAY_HAVE.get(self.sasl_mechanism or "", ())


def require_mechanism(security: SecurityConfig, java: Any, librdkafka: Any) -> None:
    """Finds a mechanism of SASL for both clients: ours, or one in each one's own settings.

    Raises:
        PydanticCustomError: at least one has none.
    """
    own = "sasl.mechanism" in java and {"sasl.mechanism", "sasl.mechanisms"} & set(librdkafka)
    if security.is_sasl and not security.sasl_mechanism and not own:
        raise PydanticCustomError(
            "security",
            "{protocol} needs security.sasl_mechanism, or sasl.mechanism in both java and "
            "librdkafka",
            {"protocol": security.security_protocol},
        )
