"""Rights on a broker that asks for them: written, and known to the broker when this returns."""

from confluent_kafka.admin import AclBinding, AclBindingFilter, AdminClient

from stack.processes import wait_for

KNOWN_S = 120.0


def grant(admin: AdminClient, binding: AclBinding) -> None:
    """Write one rule; a broker takes it from its log, some time after the controller has it."""
    for future in admin.create_acls([binding]).values():
        future.result(KNOWN_S)
    rule = AclBindingFilter(
        binding.restype, binding.name, binding.resource_pattern_type, binding.principal,
        binding.host, binding.operation, binding.permission_type,
    )  # fmt: skip
    wait_for(
        lambda: admin.describe_acls(rule).result(KNOWN_S), KNOWN_S, "the broker to know a right"
    )
