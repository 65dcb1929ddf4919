"""The rights of each role in a channel's bucket, as data and as S3 policies.

One machine has one role. The store refuses what a role may not do, not this program: a runner in
an attacker's hands can store verdicts on one family and nothing else. The table in
`docs/how-to/buckets.md` is derived from this, and tests run every command with exactly these rights
against a server that enforces them. (Policies: AWS IAM, JSON policy element reference.)
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rocwheel.base.choices import ALL
from rocwheel.base.errors import ConfigError
from rocwheel.base.store import bucket_of
from rocwheel.base.values import Plain
from rocwheel.records.places import OURS
from rocwheel.release.index.channels import Channel
from rocwheel.release.ledger import nights

# The environments of a workflow whose jobs alone have a role; others run on the main branch.
ENVIRONMENTS: Final = {"promoter": ("promotion", "pruning"), "imager": ("images",)}
VERSION: Final = "2012-10-17"  # of the policy language
READ: Final = "s3:GetObject"
PUT: Final = "s3:PutObject"
DELETE: Final = "s3:DeleteObject"
# which every role may
LIST: Final = ("s3:ListBucket", "s3:ListBucketVersions",
               "s3:GetBucketLocation", "s3:GetBucketObjectLockConfiguration")  # fmt: skip
WRITE: Final = (PUT, "s3:PutObjectRetention")  # the second in a bucket with Object Lock

# Below the channel's prefixes; {family} is one family, or `*`.
STAGED: Final = "{staging}/*"
RELEASED: Final = "{release}/*"
VERDICTS: Final = (f"{{staging}}/{OURS}/verdicts/*", f"{{staging}}/*/{OURS}/verdicts/*")
VERDICTS_OF: Final = (
    f"{{staging}}/{OURS}/verdicts/*/{{family}}/*",
    f"{{staging}}/{OURS}/verdicts/probe/{{family}}*",
    # sets of before 0.3
    f"{{staging}}/{{family}}/{OURS}/verdicts/*",
    f"{{staging}}/{ALL}/{OURS}/verdicts/*/{{family}}/*",
)
STATED: Final = (f"{{staging}}/{OURS}/attestations/*", f"{{staging}}/*/{OURS}/attestations/*")
IMAGES: Final = (
    f"{{staging}}/{{family}}/{OURS}/images/*",
    f"{{release}}/{{family}}/{OURS}/images/*",
)
WHEELS: Final = "{staging}/*.whl"
METADATA: Final = "{staging}/*.whl.metadata"
MANIFESTS: Final = (f"{{staging}}/{OURS}/manifests/*", f"{{staging}}/*/{OURS}/manifests/*")
PROBE: Final = f"{OURS}/probe*"
# A night. A machine records cells of its kind, whose names begin with it; a plan is
# commands, so only who builds makes one.
NIGHT: Final = (f"{nights.ROOT}/*", f"{nights.HOSTS}/*")
HOSTS: Final = f"{nights.HOSTS}/*"
PAGE: Final = "status/*"
PLANS: Final = (nights.INDEX, *(f"{nights.ROOT}/{name}" for name in ("clock.json", "*/plan.json")))
SUMMARIES: Final = f"{nights.ROOT}/*/summary.json"
BISECT: Final = f"{nights.BISECT}/*"  # a store of its own, from which nothing is released


def _cells(*kinds: str) -> tuple[str, ...]:
    """Return the keys that cells of these kinds write: the probe, their records and leases."""
    return (f"{nights.PROBE}*", *(f"{nights.ROOT}/*/cells/{kind}" for kind in kinds))


class Role(Plain, frozen=True):
    name: str
    about: str
    may: Mapping[str, tuple[str, ...]]  # action -> keys
    may_not: Mapping[str, tuple[str, ...]] = {}  # even if it is allowed


ROLES: Final = {
    role.name: role
    for role in (
        Role(
            "builder",
            "`nightly plan`, `nightly bisect`, cells that build and stage wheel sets; `stage`, "
            "`trust approve`",
            {
                READ: (STAGED, RELEASED, PROBE, *NIGHT, BISECT),
                PUT: (
                    STAGED,
                    PROBE,
                    *PLANS,
                    *_cells("build.*"),
                    f"{nights.ROOT}/*/bisects/*",
                    BISECT,
                ),
            },
            {PUT: VERDICTS},
        ),
        Role(
            "runner",
            "`gate`, `gate merge` on one family: puts verdicts and reports, deletes nothing",
            {
                READ: (STAGED, RELEASED, *NIGHT, BISECT),
                PUT: (
                    *VERDICTS_OF,
                    *_cells("gate.*", "merge.*"),
                    HOSTS,
                    f"{nights.BISECT}/*/{OURS}/verdicts/*",
                    *(f"{nights.BISECT}/{key}" for key in (*_cells("gate.*"), HOSTS)),
                ),
            },
        ),
        Role(
            "imager",
            "`image runtime`: puts records and verdicts of images",
            {READ: (STAGED, RELEASED, PROBE, *NIGHT), PUT: (*IMAGES, PROBE, *_cells("image.*"))},
        ),
        Role(
            "reporter",
            "`nightly report`, `nightly changes`, `nightly check`: the page of a night",
            {
                READ: (STAGED, RELEASED, *NIGHT, PAGE),
                PUT: (PAGE, SUMMARIES, *_cells("page/*")),
            },
        ),
        Role(
            "promoter",
            "`promote`, `yank`, `rollback`, `index restore`, `index prune`, `index repair`, "
            "`index adopt` of a release, `nightly prune`; ends nights",
            {
                READ: (STAGED, RELEASED, PROBE, *NIGHT, PAGE),
                PUT: (
                    STAGED,
                    RELEASED,
                    PROBE,
                    PAGE,
                    nights.INDEX,
                    SUMMARIES,
                    *_cells("promote.*", "prune/*"),
                ),
                # Retention is one decision, so one role carries it out: of indexes and of nights.
                DELETE: (STAGED, RELEASED, f"{nights.ROOT}/*"),
            },
            {
                PUT: (WHEELS, METADATA, *MANIFESTS, *VERDICTS, *STATED),
                DELETE: (*VERDICTS, *STATED),
            },
        ),
    )
}


def spelt(channel: Channel, keys: Iterable[str], family: str) -> tuple[str, ...]:
    names = (
        key.format(staging=item.staging, release=item.release, family=family)
        for key in keys
        for item in channel.prefixes.values()
    )
    return tuple(dict.fromkeys(names))


def policy(channel: Channel, role: Role, *, family: str = "*") -> dict[str, Any]:
    """Return the policy document of a role. Raises ConfigError for a store that has no policies."""
    address = bucket_of(channel.store)
    if not address:
        raise ConfigError(
            f"{channel.store}: no bucket, so no policy",
            hint="write s3://bucket/prefix; a folder has file permissions",
        )
    bucket = f"arn:aws:s3:::{address[0]}"
    base = f"{address[1]}/".lstrip("/")
    statements = [{"Effect": "Allow", "Action": list(LIST), "Resource": [bucket]}]
    for effect, grants in (("Allow", role.may), ("Deny", role.may_not)):
        for action, keys in grants.items():
            resources = [f"{bucket}/{base}{key}" for key in spelt(channel, keys, family)]
            actions = list(WRITE) if action == PUT else [action]
            statements.append({"Effect": effect, "Action": actions, "Resource": resources})
    return {"Version": VERSION, "Statement": statements}


def trust(role: Role, repository: str) -> dict[str, Any]:
    """Return the trust policy of a role for GitHub's OIDC: who of a repository may assume it.

    A job in an environment has that in its token's subject, any other its branch. See
    https://docs.github.com/actions/reference/security/oidc.
    """
    places = [f"environment:{name}" for name in ENVIRONMENTS.get(role.name, ())]
    issuer = "token.actions.githubusercontent.com"
    conditions = {
        f"{issuer}:aud": "sts.amazonaws.com",
        f"{issuer}:sub": [f"repo:{repository}:{p}" for p in places or ("ref:refs/heads/main",)],
    }
    statement = {
        "Effect": "Allow",
        "Principal": {"Federated": f"arn:aws:iam::ACCOUNT:oidc-provider/{issuer}"},
        "Action": "sts:AssumeRoleWithWebIdentity",
        "Condition": {"StringEquals": conditions},
    }
    return {"Version": VERSION, "Statement": [statement]}
