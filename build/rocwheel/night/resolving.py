"""Resolves what moves (a branch, the newest tarball, an image) to digests, once for a night.

A set with an input that cannot be resolved is left out, with the reason; the others go on.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import date
from email.utils import parsedate_to_datetime
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Final

from packaging.version import Version

import amdgpu_family_matrix as matrix
from amdgpu_family_matrix import Family
from rocwheel import __version__, rocm, source
from rocwheel.base import errors, files, git, home
from rocwheel.base.download import Client, without_secrets
from rocwheel.base.errors import ConfigError, FetchError, RocwheelError, SourceError
from rocwheel.base.here import Here
from rocwheel.base.home import Home
from rocwheel.base.host import machine
from rocwheel.base.process import Runner
from rocwheel.base.values import canonical_json, replace
from rocwheel.base.versions import RocmVersion
from rocwheel.bazel import check_rocm
from rocwheel.image import registry
from rocwheel.night.settings import Branch, NightSettings, SetSettings
from rocwheel.night.truth import NightSummary
from rocwheel.release.ledger.nights import CHECKOUT, Cell, WheelRecipe
from rocwheel.rocm import listing, therock
from rocwheel.rocm.listing import ListedTarball
from rocwheel.rocm.therock import ReleaseStream
from rocwheel.source.pins import Pin

GITHUB: Final = "https://github.com/"
COMPARE: Final = "https://api.github.com/repos/{}/compare/{}...{}"
COMPARE_BYTES: Final = 32 << 20
EXECUTOR: Final = "docker"  # the engine of a set's image that names no other


def _quiet(
    name: str, newest: date, allowed: int, today: date, why: tuple[str, str]
) -> Iterator[Cell]:
    """Yield a red cell if a source has had nothing new for too long.

    Its old build is kept, so no other cell of the night would show it. `why` is the source, and
    what to do.
    """
    where, todo = why
    age = (today - newest).days
    text = f"{where}: the newest is of {newest}, {age} days old, and {allowed} are allowed; {todo}"
    if age < -1:
        text = f"{where}: the newest is of {newest}, which is yet to come: a clock is wrong"
    if not -1 <= age <= allowed:
        yield Cell(name=f"source.{name}", kind="source", argv=(), absent=text)


def _taken(recipe: WheelRecipe, recipes: Sequence[WheelRecipe]) -> Cell | None:
    """Return the cell of a build whose wheels would have the names of an earlier recipe's.

    Two streams may offer one version of ROCm, from other commits: an index takes a name once.
    """

    def names(of: WheelRecipe) -> tuple[object, ...]:
        suffixes = [word for word in of.argv if word.startswith("--wheel-")]
        return of.jax, of.jax_commit, of.rocm_version, suffixes

    for other in recipes:
        meet = {*other.families} & {*recipe.families} and {*other.pythons} & {*recipe.pythons}
        if meet and other.inputs != recipe.inputs and names(other) == names(recipe):
            why = (
                f"{without_secrets(recipe.rocm)}: offers ROCm {recipe.rocm_version} as "
                f"{without_secrets(other.rocm)} does, so its wheels would have the names of "
                f"{other.name}'s: give one of them a --wheel-suffix in `options`, or leave it out"
            )
            family = recipe.families[0] if len(recipe.families) == 1 else ""
            return Cell(
                name=f"build.{recipe.name}", kind="build", argv=(), absent=why,
                wheels=recipe.name, family=family,
            )  # fmt: skip
    return None


def _absent(item: SetSettings, why: str, family: str = "", python: str = "") -> Cell:
    wheels = f"{item.name}-{family}" if family and item.rocm.tarballs else item.name
    name = ".".join(filter(None, ("build", wheels, python)))
    return Cell(
        name=name, kind="build", argv=(), absent=why, wheels=wheels, family=family, python=python
    )


class Resolver:
    """Resolves the sets of a night; each source is asked once, so that all of them agree."""

    def __init__(
        self,
        settings: NightSettings,
        families: Mapping[str, Family],
        *,
        here: Here,  # in the folder of the settings
        client: Client,
        tool: str,  # commit of rocwheel, or its version
        tool_repository: str = "",  # that it was cloned from
        one_build: bool = False,  # as the channel says: one set for all families of an entry
        own: tuple[str, ...] = (),  # --family-file, as an option
        last: NightSummary | None = None,
    ) -> None:
        self.settings, self.families, self.here, self.client = settings, families, here, client
        self.tool, self.tool_repository = tool, tool_repository
        self.one_build, self.own, self.ci = one_build, own, here.home.ci
        past = (*last.builds, *last.recipes) if last else ()  # one may be absent in the last night
        self.past = {item.name: item.jax_commit for item in past}
        self.pins = source.pins_of(self.ci)
        self.commit_of = cache(partial(git.resolve_ref, runner=here.runner))
        self.image_of, self.day = cache(self._image), cache(self._day)
        self.authors = cache(self._authors)
        self.listed = cache(partial(listing.every, client=client, cwd=here.cwd))
        self.today = here.now().date()

    def resolve(self) -> tuple[tuple[WheelRecipe, ...], tuple[Cell, ...]]:
        """Resolve every recipe of the night; return them, and the builds that are absent."""
        self.settings.check_families(self.families)
        recipes: list[WheelRecipe] = []
        absent: list[Cell] = []
        for item in self.settings.sets:
            try:
                for made in self.of(item):
                    if isinstance(made, WheelRecipe):
                        if taken := _taken(made, recipes):
                            absent.append(taken)
                        else:
                            recipes.append(made)
                    elif made.kind != "source" or made.absent not in {c.absent for c in absent}:
                        absent.append(made)  # sets may share a page or a branch
            except ConfigError:
                raise
            except RocwheelError as exc:
                self.here.console.warn(f"{item.name}: {exc}")
                names = self.wanted(item) if self.is_apart(item) else ("",)
                absent += (_absent(item, str(exc), name) for name in names)
        streams = [stream for item in self.settings.sets if (stream := self.stream_of(item))]
        for line in therock.outdated(self.today, streams):
            self.here.console.warn(line)
        return tuple(recipes), tuple(absent)

    def stream_of(self, item: SetSettings) -> ReleaseStream | None:
        return therock.stream_of(item.rocm.tarballs, ci=self.ci, cwd=self.here.cwd)

    def wanted(self, item: SetSettings) -> tuple[str, ...]:
        """Return the families that a set is for."""
        return item.families or tuple(name for name in self.families if name in matrix.FAMILIES)

    def is_apart(self, item: SetSettings) -> bool:
        """Return whether each family has a set of its own, of its own tarball."""
        is_one = self.one_build and len(self.wanted(item)) > 1
        return bool(item.rocm.tarballs) and not is_one

    def of(self, item: SetSettings) -> Iterator[WheelRecipe | Cell]:
        """Yield the recipes of a set, and cells for absent builds."""
        wanted, pin = self.wanted(item), self._pin(item)
        for python in item.pythons:
            if pin and python not in pin.pythons:
                why = f"JAX {pin.version} has no lock file for CPython {python}"
                yield _absent(item, why, python=str(python))
        day = ""
        if isinstance(item.jax, Branch) and (newest := self.day(item.jax)):
            said = f"{item.jax.repository}, {item.jax.name}", "does JAX go on in another branch?"
            yield from _quiet(f"{item.name}.jax", newest, item.jax.quiet_days, self.today, said)
            day = str(newest)
        if not item.rocm.tarballs:
            yield replace(self._recipe(item, item.name, wanted, item.rocm.source), jax_newest=day)
            return
        page = therock.address(item.rocm.tarballs, "tarballs", ci=self.ci, cwd=self.here.cwd)
        listed = listing.newest_of(self.listed(page), page, self.stream_of(item))
        every = therock.known().names.everything
        names = wanted if self.is_apart(item) else (every,)
        there = [listed[name] for name in names if name in listed and "://" in page]
        days = {one.name.group: one.day or self._put(one.source) for one in there}
        yield from self._old(item, page, {name: day for name, day in days.items() if day})
        if days and not any(days.values()):
            self.here.console.warn(f"{without_secrets(page)}: no build says its day: none is old")
        for made in self._of_page(item, page, listed):
            if isinstance(made, WheelRecipe):
                own = days.get(made.families[0]) or days.get(every)
                yield replace(made, jax_newest=day, rocm_newest=str(own or ""))
            else:
                yield made

    def _put(self, url: str) -> date | None:
        """Return the day a tarball was put where it is, if its server says it."""
        with suppress(FetchError, ValueError), closing(self.client.get(url)) as answer:
            return parsedate_to_datetime(answer.fingerprint.modified).date()
        return None

    def _old(self, item: SetSettings, page: str, days: Mapping[str, date]) -> Iterator[Cell]:
        """Yield a red cell for each family whose newest build is too old; one where all are."""
        where, stream, place = without_secrets(page), self.stream_of(item), therock.place_of(page)
        allowed = item.rocm.quiet_days or (stream or self.settings).quiet_days
        todo = "has TheRock moved? `rocwheel pins bump therock`"
        if place and place[1].ended:
            todo = f"nothing comes there since {place[1].ended}: write `tarballs: {place[0]}`"

        def cells(name: str, day: date, label: str) -> list[Cell]:
            return [*_quiet(f"{name}.rocm", day, allowed, self.today, (label, todo))]

        old = cells(item.name, max(days.values()), where) if days else []
        each = (cells(f"{item.name}-{one}", day, f"{where}: {one}") for one, day in days.items())
        yield from old or chain.from_iterable(each)

    def _of_page(
        self, item: SetSettings, page: str, newest: Mapping[str, ListedTarball]
    ) -> Iterator[WheelRecipe | Cell]:
        wanted = self.wanted(item)
        if not self.is_apart(item):
            every = therock.known().names.everything
            if every not in newest:
                why = f"{without_secrets(page)}: lists no {every} tarball, for all families"
                raise SourceError(why, hint="name one source")
            yield self._recipe(item, item.name, wanted, newest[every].source)
            return
        for name in wanted:
            if name not in newest:
                why = f"{without_secrets(page)}: lists no tarball of {name}"
                if any(item.name.is_multiarch for item in newest.values()):
                    why += "; name its multiarch tarball with `source` to build for all families"
                yield _absent(item, why, name)
                continue
            try:
                yield self._recipe(item, f"{item.name}-{name}", (name,), newest[name].source)
            except (FetchError, SourceError, errors.StoreError, errors.HostError) as exc:
                self.here.console.warn(f"{item.name}-{name}: {exc}")
                yield _absent(item, str(exc), name)

    def _tarball(self, item: SetSettings, where: str) -> tuple[str, str, str]:
        """Return source, version, digest. Raises ConfigError for a ROCm the pin cannot use."""
        name, pin = therock.parse_name(therock.base_name(where)), self._pin(item)
        if pin and name and name.version and not isinstance(item.jax, Branch):
            try:
                check_rocm(name.version, pin.version, self.pins.layouts[pin.layout])
            except ConfigError as exc:  # of this set; the others go on
                raise SourceError(f"{exc}; {exc.hint}") from exc
        return self.tarball(where, item.rocm.sha256, item.rocm.version)

    def _recipe(self, item: SetSettings, name: str, of: tuple[str, ...], where: str) -> WheelRecipe:
        pin = self._pin(item)
        source, version, sha256 = self._tarball(item, where)
        jax, repository, commit, argv = self._jax(item, pin)
        known = pin.pythons if pin else item.pythons
        pythons = tuple(str(p) for p in item.pythons or known if p in known)
        if not pythons:
            raise ConfigError(f"{name}: no CPythons", hint="add `pythons:` to the set")
        image = self.image_of(item.image)
        targets = tuple(dict.fromkeys(t for family in of for t in self.families[family].targets))
        chosen: tuple[str, ...] = (f"--gfx-targets={','.join(targets)}",) if targets else ()
        if self.one_build and len(of) > 1:
            chosen = (f"--family={','.join(of)}", *self.own)
        date = self.here.now().strftime("%Y%m%d")
        engine = f"--executor={item.executor or EXECUTOR}"
        built_in = (engine, f"--builder-image={image}") if image else ()
        words = (
            "dist_wheels",
            f"--therock-path={source}",
            *((f"--therock-sha256={sha256}",) if sha256 else ()),
            *((f"--rocm-version={item.rocm.version}",) if item.rocm.version else ()),
            *argv,
            f"--python-versions={','.join(pythons)}",
            *chosen,
            *built_in,
            *(option.replace("{date}", date) for option in item.options),
            "--wheelhouse={wheelhouse}",
        )
        # where things lie and which machine does it is no input; what is read is
        inputs = {
            "tool": self.tool,
            "jax": [repository, commit],
            "rocm": [sha256 or source, version],
            "image": image,
            "compiler": "" if image else self._compiler(item, pin),
            "pythons": list(pythons),
            "gfx": list(targets),
            "argv": [w for w in words if not w.startswith(("--therock-path=", "--family-file="))],
        }
        return WheelRecipe(
            name=name,
            inputs=files.sha256(canonical_json(inputs)),
            jax=jax,
            jax_repository=repository,
            jax_commit=commit,
            rocm=source,
            rocm_version=version,
            rocm_sha256=sha256,
            image=image,
            families=of,
            pythons=pythons,
            argv=words,
            xla_commit=(pin.xla_commit or "") if pin and not isinstance(item.jax, Branch) else "",
            tool=self.tool,
            tool_repository=self.tool_repository,
            authors=self.authors(repository, self.past.get(name, ""), commit),
        )

    def _compiler(self, item: SetSettings, pin: Pin | None) -> str:
        """Return the digest of this machine's clang, "" for a set that it does not build."""
        known = self.pins.layouts[pin.layout].version_class(Version(pin.version)) if pin else None
        given = dict(word.partition("=")[::2] for word in item.options)
        path = given.get("--compiler-path")
        if given.get("--compiler") == "hermetic" or (known and known.own_clang and not path):
            return ""
        runner, environ = self.here.runner, self.here.environ
        try:
            pair = machine.clang(Path(path) if path else None, environ, runner=runner)
        except errors.HostError:  # it builds on other machines
            return ""
        programs = machine.Programs(runner=runner, path=environ.get("PATH", ""))
        return programs.digest(map(str, (pair.cc, pair.cxx)))

    def _day(self, branch: Branch) -> date | None:
        """Return the day of a branch's newest commit; None for a commit, or where it is unknown."""
        commit = self.commit_of(branch.repository, branch.name)
        try:
            given = branch.name == commit
            return None if given else git.day_of(branch.repository, commit, runner=self.here.runner)
        except SourceError as exc:  # a server that gives no single commit
            where = branch.repository
            self.here.console.warn(f"{where}: the day of its newest commit is not known: {exc}")
            return None

    def _pin(self, item: SetSettings) -> Pin | None:
        if item.jax is None:
            return None
        wanted = item.jax.pin if isinstance(item.jax, Branch) else item.jax
        if wanted == "default":
            return self.pins.default
        return self.pins.find(wanted, allow_unverified="--allow-unverified-pin" in item.options)

    def _jax(self, item: SetSettings, pin: Pin | None) -> tuple[str, str, str, tuple[str, ...]]:
        if isinstance(item.jax, Branch):
            commit = self.commit_of(item.jax.repository, item.jax.name)
            return item.jax.name, item.jax.repository, commit, (CHECKOUT,)
        if pin:
            return pin.name, pin.repository, pin.commit, (f"--jax-version={pin.name}",)
        folder = self.here.cwd / item.source_dir
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder", hint="correct `source_dir`")
        tree = git.identify(folder, runner=self.here.runner)
        return folder.name, "", tree.digest or tree.commit, (f"--jax-source-dir={folder}",)

    def tarball(self, where: str, sha256: str = "", asked: str = "") -> tuple[str, str, str]:
        """Return a source, its version and its digest; "" for a folder, which has none.

        The digest is as given, as the file beside the source says, or found by reading it.

        Raises ConfigError where its name says another version than the one asked for.
        """
        here, name = self.here, therock.parse_name(therock.base_name(where))
        version = str(name.version) if name and name.version else asked
        if asked and RocmVersion.parse(asked) != RocmVersion.parse(version):
            why = f"{where}: is ROCm {version}, not {asked}"
            raise ConfigError(why, hint="correct `rocm.version`")
        if not sha256 and "://" in where:
            therock.stream_of(where, ci=self.ci, cwd=here.cwd)  # refuses plain http
            note = here.console.warn
            sha256 = rocm.digest_of(where, client=self.client, cache=here.cache, note=note)
        elif not sha256:
            path = (here.cwd / where).resolve()
            if not (path.is_dir() or path.is_file()):
                raise ConfigError(f"{path}: no such file or folder", hint="correct `rocm.source`")
            if path.is_file() and not path.stat().st_size:
                raise SourceError(f"{path}: is empty", hint="copy the tarball again")
            where, sha256 = str(path), "" if path.is_dir() else files.sha256(path)
        return where, version, sha256

    def _image(self, name: str) -> str:
        """Return an image by digest: as given, or what its tag is at its registry now."""
        if not name or "@sha256:" in name:
            return name
        here = self.here
        image = registry.look(*registry.parts(name), environ=here.environ, runner=here.runner)
        if image is None:
            raise SourceError(f"{name}: the registry has no such image", hint="correct `image`")
        return image.reference

    def _authors(self, repository: str, old: str, new: str) -> tuple[str, ...]:
        """Return who wrote the commits of JAX since the last night, where GitHub says it."""
        name = repository.removeprefix(GITHUB).removesuffix(".git")
        if not (repository.startswith(GITHUB) and old and new) or old == new:
            return ()
        url = COMPARE.format(name, old, new)
        try:
            commits = json.loads(self.client.read(url, limit=COMPARE_BYTES))["commits"]
            names = [item["commit"]["author"]["name"] for item in commits]
        except (FetchError, ValueError, KeyError, TypeError) as exc:  # people can follow the link
            self.here.console.warn(f"{url}: {exc}")
            return ()
        return tuple(dict.fromkeys(names))


def tool_of(ours: Home, runner: Runner) -> str:
    """Return rocwheel's commit and the digest of what differs from it: inputs of a build."""
    tree = home.tool(ours, partial(git.identify, runner=runner))
    return " ".join(filter(None, (__version__, tree.commit, tree.digest)))
