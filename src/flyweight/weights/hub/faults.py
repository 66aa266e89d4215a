"""What goes wrong between here and the Hub, each as one line with the way out.

Invariant: no exception of the client leaves the block; its words are escaped and cut.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from flyweight.errors import CheckpointError
from flyweight.validation.untrusted import one_line, printable
from flyweight.weights.hub.names import HubName

FULL = (errno.ENOSPC, errno.EDQUOT)
TOKEN = "set HF_TOKEN to a token that may read it (https://huggingface.co/settings/tokens)"


class Unreachable(CheckpointError):
    """The Hub cannot be reached, or does not answer as one; the cache may still do."""


@contextmanager
def translate_errors(name: HubName) -> Iterator[None]:
    """Turns what the client raises inside the block into a `CheckpointError`."""
    from huggingface_hub import constants, errors

    where = constants.ENDPOINT
    try:
        yield
    except CheckpointError:
        raise
    except errors.LocalEntryNotFoundError as error:  # how the client wraps a failed look-up
        raise _translate(name, where, error.__cause__ or error) from None
    except errors.HFValidationError as error:
        raise CheckpointError(f"{name}: not a name on the Hub ({one_line(str(error))})") from None
    except (errors.HTTPError, OSError) as error:
        raise _translate(name, where, error) from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:  # no JSON, or not of a Hub
        reason = one_line(str(error)) or type(error).__name__
        raise Unreachable(f"{where} does not answer as a Hub does ({reason})") from None


def _translate(name: HubName, where: str, error: BaseException) -> CheckpointError:
    from huggingface_hub import errors

    if isinstance(error, errors.OfflineModeIsEnabled):
        return make_offline_error(name)
    if isinstance(error, errors.HfHubHTTPError):
        return _make_http_error(name, where, error)
    if isinstance(error, errors.HTTPError | errors.FileMetadataError):
        reason = one_line(str(error)) or type(error).__name__
        return Unreachable(f"no network: {where} cannot be reached ({reason})")
    if isinstance(error, OSError):
        return _make_disk_error(name, error)
    return CheckpointError(f"{name}: {one_line(str(error)) or type(error).__name__}")


def make_offline_error(name: HubName) -> Unreachable:
    """There may be no call, and the cache does not have it."""
    return Unreachable(
        f"{name} is not in the cache, and offline the Hub is not called; "
        f"to download it, with a network: flyweight pull {name}"
    )


def _make_http_error(name: HubName, where: str, error: BaseException) -> CheckpointError:
    """What the Hub's answer means."""
    from huggingface_hub import errors

    response = getattr(error, "response", None)
    status = getattr(response, "status_code", 0)
    if isinstance(error, errors.GatedRepoError):
        return CheckpointError(
            f"{name} is gated ({status}): accept its terms at {where}/{name.repo}, then {TOKEN}"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return CheckpointError(f"{name} has no revision {printable(name.revision or 'main')}")
    if isinstance(error, errors.EntryNotFoundError):
        return CheckpointError(f"{name}: a file is gone from the Hub (404); pull it again")
    if isinstance(error, errors.RepositoryNotFoundError) or status == 404:
        return CheckpointError(
            f"{name.repo} is neither a file or folder here nor a model at {where} ({status}); "
            f"check the spelling; if it is private, {TOKEN}"
        )
    if status in (401, 403):
        return CheckpointError(f"{name}: {where} refuses access ({status}); {TOKEN}")
    if status == 429:
        return CheckpointError(
            f"{name}: {where} has had too many requests from here (429); wait some minutes, "
            "or set HF_TOKEN, which allows more"
        )
    if status >= 500:
        return Unreachable(f"{where} is in trouble itself ({status}); try again later")
    return CheckpointError(f"{name}: {where} answers {status} ({one_line(str(error))})")


def _make_disk_error(name: HubName, error: OSError) -> CheckpointError:
    reason = error.strerror or one_line(str(error))
    at = f" in {printable(str(error.filename))}" if error.filename else ""
    if error.errno in FULL:
        return CheckpointError(
            f"{name}: the disk is full{at}; flyweight rm makes room, HF_HOME moves the cache; "
            "what has come is kept, and the next run goes on from there"
        )
    return CheckpointError(f"{name}: {reason}{at}; the next run goes on with what has come")
