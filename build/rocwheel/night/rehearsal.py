"""Trying a channel before its first night: what each role may, page, labels, message, registries.

Nothing is changed: a write is tried with a condition that cannot hold, a deletion with a name that
nothing has. What the store then says tells a right from its absence.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Final

import amdgpu_family_matrix as matrix
from rocwheel.base import errors
from rocwheel.base.download import Client, proxies, reason, session
from rocwheel.base.errors import ConfigError, FetchError, RefusedError, RocwheelError, StoreError
from rocwheel.base.process import Runner
from rocwheel.base.store import JSON, Headers, ObjectInfo, Store
from rocwheel.base.store.opening import open_store
from rocwheel.base.values import Plain, replace
from rocwheel.image import registry
from rocwheel.night.settings import NightSettings, Pools
from rocwheel.night.upkeep import page_url
from rocwheel.release import rights
from rocwheel.release.index.channels import Channel
from rocwheel.release.ledger.nights import PROBE, ROOT, Nights
from rocwheel.release.rights import DELETE, PUT, READ, Role

TIMEOUT: Final = 30.0  # seconds
STS_REGION: Final = "us-east-1"  # of the global endpoint, where none is set
STEM: Final = "rehearsal-"
NEVER: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
GITHUB_API: Final = "https://api.github.com"


class Rehearsed(Plain, frozen=True, kw_only=True):
    """One thing that was tried: whether it is as it should be, and else what to do."""

    what: str
    good: bool | None  # None: not tried here
    why: str
    todo: str = ""


class Rehearsal(Plain, frozen=True, kw_only=True):
    """What a channel's nights need, to be tried from where they will run."""

    nights: Nights
    channel: Channel
    settings: NightSettings
    pools: Pools
    client: Client
    now: datetime
    environ: Mapping[str, str]
    runner: Runner
    repository: str = ""  # OWNER/NAME, on GitHub

    def run(self, role: str, family: str) -> Iterator[Rehearsed]:
        """Try everything; the rights of one role, or of all that the channel names."""
        todo = "use a store that docs/how-to/buckets.md lists"
        why = "conditional writes are taken and kept"
        yield self._tried("store", self.nights.store.abilities, todo, why)
        if role in {"", "builder"}:
            ask = partial(self.nights.check_clock, self.now)
            todo = "set the clock of this machine"
            yield self._tried("clock", ask, todo, "agrees with the store's")
        for name in (role,) if role else self.channel.roles:
            yield from self._role(rights.ROLES[name], family)
        yield self._tried("page", self._page, "let the public URL serve the root of the store")
        yield self._tried("message", self._message, "correct `notify` of ci/nightly.yaml")
        if role in {"", "imager"}:
            for name in dict.fromkeys(item.push for item in self.settings.images):
                todo = "log in as the user whose jobs push: docker login, podman login"
                # a registry tells those who logged in that there is no such image
                nothing = f"{name}/{STEM}{uuid.uuid4().hex[:12]}"
                look = partial(
                    registry.look, nothing, "none", environ=self.environ, runner=self.runner
                )
                why = "answers with the login that the engine keeps"
                yield self._tried(f"registry {name}", look, todo, why)
        yield from self._runners()

    def _tried(self, what: str, ask: Callable[[], object], todo: str, why: str = "") -> Rehearsed:
        """Ask; where all is well the row shows `why`, or the answer."""
        try:
            answer = ask()
        except RocwheelError as exc:
            return Rehearsed(what=what, good=False, why=str(exc), todo=exc.hint or todo)
        return Rehearsed(what=what, good=True, why=why or str(answer))

    def _page(self) -> str:
        page = page_url(self.channel, self.nights.store)
        if "://" not in page or page.startswith("file:"):
            return f"{page}: a folder"
        there = self.client.read(page, fresh=True)
        return f"{page}: {'is served' if there else 'answers; no page yet'}"

    def _message(self) -> str:
        secret, url = self.settings.notify.secret, self.settings.notify.url
        if secret and not self.environ.get(secret):
            raise ConfigError(f"{secret}: is not set", hint="set it to the key for signing")
        if not url:
            return "is sent to no URL"
        try:
            self.client.read(url, fresh=True)
        except FetchError as exc:
            if "HTTP" not in str(exc):  # an address for POST may refuse a GET, but it answers
                raise
        return "its address answers; nothing was sent"

    def _role(self, role: Role, family: str) -> Iterator[Rehearsed]:
        """Try the rights of a role: assumed where the channel names it, else the login in use."""
        store, arn = self.nights.store, self.channel.roles.get(role.name, "")
        if arn:
            what, options = f"{role.name}: assume {arn}", self.channel.options
            try:
                login = _assumed(arn, options.endpoint, options.region)
            except RefusedError as exc:
                yield Rehearsed(what=what, good=False, why=str(exc), todo=exc.hint)
                return
            yield Rehearsed(what=what, good=True, why="its trust policy names this login")
            store = open_store(self.channel.store, replace(options, login=login, probe_key=PROBE))
        yield from self._rights(role, family, store)

    def _rights(self, role: Role, family: str, store: Store) -> Iterator[Rehearsed]:
        """Try one permitted and one forbidden request of each right of a role."""
        for action in (READ, PUT, DELETE):
            may, never = (
                rights.spelt(self.channel, grants.get(action, ()), family)
                for grants in (role.may, role.may_not)
            )
            for name in may:
                if not any(_matches(name, key) for key in never):
                    yield _right(store, role.name, action, name, wanted=True)
            if action == READ:
                continue  # every role may read all of a public index
            others = (key for other in rights.ROLES.values() for key in other.may.get(action, ()))
            for name in dict.fromkeys(
                (*never, f"{ROOT}/*/orders/*", *rights.spelt(self.channel, others, family))
            ):
                if name in never or not any(_matches(name, key) for key in may):
                    yield _right(store, role.name, action, name, wanted=False)

    def _runners(self) -> Iterator[Rehearsed]:
        """Ask GitHub which labels have a runner online; needs a token that may list them."""
        token = self.environ.get("GH_TOKEN", "")
        if not (self.repository and token):
            why = "not asked: needs --repository, and GH_TOKEN with the right to list runners"
            yield Rehearsed(what="runners", good=None, why=why)
            return
        owner = self.repository.partition("/")[0]
        online, refused = set[str](), []
        for place in (f"repos/{self.repository}", f"orgs/{owner}"):
            try:
                online |= self._online(place, token)
            except FetchError as exc:
                refused.append(str(exc))
        if len(refused) > 1:
            yield Rehearsed(what="runners", good=False, why=refused[0], todo="correct the token")
            return
        if refused:  # a person's repository has no organisation, and few tokens may ask one
            yield Rehearsed(what="runners", good=None, why=refused[0])
        runners = [r for f in matrix.families(self.settings.trigger) for r in f.runners]
        names = {runner.label for runner in runners} | {self.settings.build.label} - {""}
        for label in sorted(self.pools.labels.get(name, name) for name in names):
            there = label in online
            why = "has a runner online" if there else "no runner with this label is online"
            todo = "" if there else "start one, or rename the label: --pools"
            yield Rehearsed(what=f"label {label}", good=there, why=why, todo=todo)

    def _online(self, place: str, token: str) -> set[str]:
        """Return the labels that have a runner online at a repository or an organisation."""
        import requests

        base = self.environ.get("GITHUB_API_URL", GITHUB_API)
        url, labels = f"{base}/{place}/actions/runners?per_page=100", set[str]()
        with session(self.environ) as asking:
            asking.proxies.update(proxies(url, self.environ))
            asking.headers["Authorization"] = f"Bearer {token}"
            while url:
                try:
                    answer = asking.get(url, timeout=TIMEOUT)
                    answer.raise_for_status()
                    online = (r for r in answer.json()["runners"] if r["status"] == "online")
                    labels |= {label["name"] for runner in online for label in runner["labels"]}
                except (requests.RequestException, ValueError, KeyError, TypeError) as exc:
                    raise FetchError(f"{url}: {reason(exc)}", hint="correct GH_TOKEN") from exc
                url = answer.links.get("next", {}).get("url", "")
        return labels


def _assumed(arn: str, endpoint: str, region: str) -> dict[str, str]:
    """Return the login of a role, for boto3. Raises RefusedError where it cannot be assumed."""
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    own = boto3.session.Session()
    region = region or own.region_name or STS_REGION
    try:
        sts = own.client("sts", endpoint_url=endpoint or None, region_name=region)
        made = sts.assume_role(RoleArn=arn, RoleSessionName="rehearsal")["Credentials"]
    except (BotoCoreError, ClientError) as exc:
        hint = "name the login in use in the role's trust policy, or rehearse with its own login"
        raise RefusedError(str(exc), hint=hint) from exc
    return {
        "aws_access_key_id": made["AccessKeyId"],
        "aws_secret_access_key": made["SecretAccessKey"],
        "aws_session_token": made["SessionToken"],
    }


def _matches(name: str, pattern: str) -> bool:
    """Return whether everything that `name` stands for is below a pattern's beginning."""
    return name.startswith(pattern.partition("*")[0]) and name.endswith(pattern.rpartition("*")[2])


def _right(store: Store, role: str, action: str, pattern: str, *, wanted: bool) -> Rehearsed:
    """Try an action on a name of a pattern; nothing is changed, whatever comes of it."""
    key = pattern.replace("*", f"{STEM}{uuid.uuid4().hex[:12]}")
    word = action.removeprefix("s3:").removesuffix("Object").lower()
    what = f"{role}: {word} {pattern}"
    try:
        with suppress(errors.ObjectMissingError, errors.ObjectStaleError):
            if action == READ:
                store.read(key)
            elif action == DELETE:
                store.delete(key)
            else:
                nothing = ObjectInfo(key=key, size=0, etag="0" * 32, sha256="", modified=NEVER)
                store.replace(key, b"{}", previous=nothing, headers=Headers(content_type=JSON))
    except StoreError as exc:
        todo = "try again when the store answers"
        if isinstance(exc, RefusedError):
            if not wanted:
                return Rehearsed(what=what, good=True, why="refused, as it should")
            todo = f"give the role what `channels rights --role {role}` prints"
        return Rehearsed(what=what, good=False, why=str(exc), todo=todo)
    if wanted:
        return Rehearsed(what=what, good=True, why="permitted")
    todo = f"take it away: `channels rights --role {role}` prints all that it needs"
    return Rehearsed(what=what, good=False, why="is permitted, and should not be", todo=todo)
