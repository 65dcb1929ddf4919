"""`channels`: what each role may do in a channel's bucket."""

from __future__ import annotations

from rocwheel.base.choices import ROLES
from rocwheel.base.errors import ConfigError
from rocwheel.cli.app import App
from rocwheel.cli.command import command, group, own
from rocwheel.cli.imports import when_run
from rocwheel.cli.target import TargetOptions

with when_run():
    import json

    from rocwheel.records import families
    from rocwheel.release import rights


@group("channels")
def channels() -> None:
    """Print what each role may do in a channel's bucket."""


class RightsOptions(TargetOptions):
    role: str = own(
        "--role", "What the machine does; docs/how-to/buckets.md has a table.",
        only=ROLES, required=True,
    )  # fmt: skip
    repository: str = own(
        "--repository OWNER/NAME",
        "Print the role's trust policy for GitHub Actions of this repository, too.",
    )


@command("rights", RightsOptions, parent=channels)
def show_rights(app: App, options: RightsOptions) -> None:
    """Print the S3 policy of a role: what it may do in the channel's bucket, and nothing more.

    Without --family it is for all families; a runner should be given one.
    """
    if options.repository and options.repository.count("/") != 1:
        raise ConfigError(
            f"--repository: {options.repository!r}: no repository", hint="write OWNER/NAME"
        )
    family = families.named(options.family).name if options.family else "*"
    document = rights.policy(options.open(app), rights.ROLES[options.role], family=family)
    if options.repository:
        trust = rights.trust(rights.ROLES[options.role], options.repository)
        document = {"rights": document, "trust": trust}
    app.emit(document, json.dumps(document, indent=2))
