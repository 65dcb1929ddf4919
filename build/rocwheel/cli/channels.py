"""`trust channels`: what each role may do in a channel's bucket."""

from __future__ import annotations

import json

import click

from rocwheel.base.choices import ROLES
from rocwheel.base.errors import ConfigError
from rocwheel.cli.app import App
from rocwheel.cli.options import group, option
from rocwheel.cli.target import TargetOptions, target_options
from rocwheel.records import families
from rocwheel.release import rights


@group("channels")
def channels() -> None:
    """Print what each role may do in a channel's bucket."""


@channels.command("rights")
@option(
    "--role",
    type=click.Choice(ROLES),
    required=True,
    help="What the machine does; docs/how-to/buckets.md has a table.",
)
@option(
    "--repository",
    metavar="OWNER/NAME",
    help="Print the role's trust policy for GitHub Actions of this repository, too.",
)
@target_options
@click.pass_obj
def show_rights(app: App, role: str, repository: str, target: TargetOptions) -> None:
    """Print the S3 policy of a role: what it may do in the channel's bucket, and nothing more.

    Without --family it is for all families; name one for a runner.
    """
    if repository and repository.count("/") != 1:
        raise ConfigError(f"--repository: {repository!r}: no repository", hint="write OWNER/NAME")
    family = families.named(target.family).name if target.family else "*"
    document = rights.policy(target.open(app), rights.ROLES[role], family=family)
    if repository:
        trust = rights.trust(rights.ROLES[role], repository)
        document = {"rights": document, "trust": trust}
    app.emit(document, json.dumps(document, indent=2))
