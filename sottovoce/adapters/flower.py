"""Flower: a mod of a ClientApp through which every message to the server goes.

    app = ClientApp(mods=[sottovoce_mod("agreement.toml", "site")])

The message function of training is called as before. Of what it answers, only the model leaves the node, with its
update clipped and noisy, and the agreed weight as `num-examples`: losses and counts of examples are about rows. Other
messages, such as those of evaluation, are answered with the weight alone, also where the app fails at them. Put this
mod first, so that no other comes after it on the way out; a reply after the budget is gone is an error, which
strategies leave out.

Where single records are protected, `records` gives the gradients of a site's records, and the app does not train.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from flwr.app import Array, ArrayRecord, Context, Error, Message, MessageType, MetricRecord, RecordDict

from sottovoce.adapters.guard import Gradients, Guard, Model
from sottovoce.adapters.site_agreement import Agreed, read_site_agreement
from sottovoce.errors import InputError, SottovoceError, Unaccountable
from sottovoce.ledger.lineages import Budget
from sottovoce.ledger.spending import DEFAULT

Call: TypeAlias = Callable[[Message, Context], Message]
Mod: TypeAlias = Callable[[Message, Context, Call], Message]

log = logging.getLogger(__name__)

ROUND, WEIGHT, REFUSED = "server-round", "num-examples", 1


def sottovoce_mod(
    agreement: Agreed,
    folder: Path | str = "guard",
    *,
    records: Callable[[str], Gradients] | None = None,
    budget: Budget | None = None,
    lineage: str = DEFAULT,
) -> Mod:
    """The mod of every node; `folder` has a folder for each site that plays here.

    A node's site is `site` of its configuration, or the one at `partition-id` in simulations.
    """
    agreed = read_site_agreement(agreement)

    def mod(message: Message, context: Context, call_next: Call) -> Message:
        try:
            site = _site(context, agreed.sites)
            own = MetricRecord({WEIGHT: agreed.weight(site)})
            if message.metadata.message_type != MessageType.TRAIN:
                try:
                    call_next(message, context)
                except Exception as error:  # that it failed is about rows, too
                    log.error("%s failed: %s", message.metadata.message_type, type(error).__name__)
                return Message(RecordDict({"metrics": own}), reply_to=message)
            (key, given), before = _model(message)
            round = _round(message)
            with Guard(agreed, site, Path(folder) / site, budget=budget, lineage=lineage) as guard:
                if records is not None:
                    noisy = guard.stepped(round, before, records(site))
                else:
                    noisy = guard.trained(round, before, lambda _: _model(_answered(call_next, message, context))[1])
        except Unaccountable as refusal:
            return Message(Error(REFUSED, str(refusal)), reply_to=message)
        except Exception as error:  # what it says may quote rows, or say where files are
            log.error("nothing is sent: %s", error if isinstance(error, SottovoceError) else type(error).__name__)
            return Message(Error(REFUSED, "nothing is sent; the log of this node says why"), reply_to=message)
        record = ArrayRecord({name: Array(noisy[name]) for name in given})
        return Message(RecordDict({key: record, "metrics": own}), reply_to=message)

    return mod


def _answered(call_next: Call, message: Message, context: Context) -> Message:
    """What the app answers, if it is no error."""
    answer = call_next(message, context)
    if answer.has_error():
        raise InputError("the app answered with an error at this node", "its log has it", "ask whoever runs it")
    return answer


def _site(context: Context, sites: list[str]) -> str:
    configured, partition = (context.node_config.get(key) for key in ("site", "partition-id"))
    if configured is None and isinstance(partition, int) and 0 <= partition < len(sites):
        return sites[partition]
    if configured not in sites:
        raise InputError(
            f"site {configured!r} of this node", f"sites are {', '.join(sites)}",
            "start it with --node-config 'site=\"NAME\"'",
        )  # fmt: skip
    return str(configured)


def _model(message: Message) -> tuple[tuple[str, ArrayRecord], Model]:
    """The one record of arrays in a message, with its key, and its arrays by name."""
    records = list(message.content.array_records.items())
    if len(records) != 1:
        raise InputError(f"{len(records)} records of arrays in a message", "there is one model", "send one")
    return records[0], {name: array.numpy() for name, array in records[0][1].items()}


def _round(message: Message) -> int:
    found = [record[ROUND] for record in message.content.config_records.values() if ROUND in record]
    if len(found) != 1 or not isinstance(found[0], int) or found[0] < 1:
        raise InputError(f"rounds {found} in a message", f"strategies send {ROUND}, from 1", "use one that does")
    return found[0] - 1
