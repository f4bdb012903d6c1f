"""What the ledger itself concludes about engines: the counting proof (E3b) and their incarnations (E4).

Gateways report what they see; the ledger decides, because only it knows what everybody owns. The rules of the proof are in
`book_proof.py`.
"""

from __future__ import annotations

from headworks.core.book_lives import Lives
from headworks.core.book_parts import Entry
from headworks.core.book_proof import Replica, Sample
from headworks.core.commands import Answer, PutIncarnation, PutSample, TakeReader, Withdraw
from headworks.core.types import Reservation

Alarms = tuple[tuple[str, str], ...]
Ended = tuple[Reservation, ...]


class Testimony(Lives):
    """Samples, incarnations, and what they end."""

    def _take_reader(self, command: TakeReader) -> Answer:
        replica = self._replicas.get(command.replica) or self._open_replica(command.replica)
        taken = self._lives(command.owner) and replica.take_reader(command.owner, self.now_ms)
        outcome = "ok" if taken else "refused"
        return self._answer("take_reader", "", outcome, owner=replica.reader, replica=replica.name)

    def _put_sample(self, command: PutSample) -> Answer:
        """A measured load: is it foreign, and does it decide anything?"""
        replica = self._replicas.get(command.replica)
        current = replica is not None and replica.incarnations and replica.incarnations[-1] == command.incarnation
        if replica is None or not current or not replica.reads(command.owner, self.now_ms):
            number = replica.incarnation if replica else 0
            return self._answer("put_sample", "", "refused", replica=command.replica, incarnation=number)
        sample = Sample(command.load, command.after_sequence, self.sequence, self.now_ms)
        alarms: Alarms = (("foreign_load", replica.name),) if replica.note_foreign(sample) else ()
        replica.samples.append(sample)
        ended, more = self._judge(replica)
        number = replica.incarnation
        return self._answer(
            "put_sample", "", "ok", replica=replica.name, incarnation=number, records=ended, alarms=alarms + more
        )

    def _judge_all(self) -> tuple[Ended, Alarms]:
        """Samples of every replica that wait for a word of their owners."""
        ended: Ended = ()
        alarms: Alarms = ()
        for replica in self._replicas.values():
            if replica.samples:
                more_ended, more_alarms = self._judge(replica)
                ended, alarms = ended + more_ended, alarms + more_alarms
        return ended, alarms

    def _judge(self, replica: Replica) -> tuple[Ended, Alarms]:
        """Decide on the samples whose owners have vouched (E3b), oldest first."""
        ended: Ended = ()
        while replica.samples:
            if replica.foreign or replica.impossible or replica.several:
                replica.samples.clear()
                break
            sample = replica.samples[0]
            inside = self._known_inside(replica, sample)
            if inside is None:
                break
            replica.samples.popleft()
            if sample.load < inside:
                replica.impossible = True
                return ended, (("evidence_impossible", replica.name),)
            if sample.load == inside:
                replica.decided()
                ended += self._finish_all(replica.proved_stopped(sample, self.lease_ms), "E3b")
            else:
                replica.doubt(self.now_ms)
        return ended, ()

    def _known_inside(self, replica: Replica, sample: Sample) -> int | None:
        return replica.known_inside(sample, self._boots)

    def _put_incarnation(self, command: PutIncarnation) -> Answer:
        """Number the engine's life and stamp what was seen in it; a newer life ends what was stamped in an older (E4)."""
        replica = self._replicas.get(command.replica) or self._open_replica(command.replica)
        shown = replica.show(command.incarnation, command.known)
        ended: Ended = ()
        if shown in ("same", "newer") and not replica.several:
            ended = self._finish_all(self._outlived(replica), "E4") if shown == "newer" else ()
            for execution in command.inside:
                entry = replica.entries.get(execution)
                if entry is not None:  # and if it was stamped before, then in this life: older ones have just ended
                    entry.incarnation = replica.incarnation
        alarms: Alarms = (("several_engines", replica.name),) if shown == "several" else ()
        outcome = "ok" if shown in ("same", "newer") else "refused"
        number = replica.incarnation
        return self._answer(
            "put_incarnation", "", outcome, replica=replica.name, incarnation=number, records=ended, alarms=alarms
        )

    def _outlived(self, replica: Replica) -> list[Entry]:
        """What was stamped in an older life of the engine. What was never stamped may run in this one."""
        return [entry for entry in replica.entries.values() if 0 < entry.incarnation < replica.incarnation]

    def _withdraw(self, command: Withdraw) -> Answer:
        replica = self._replicas.get(command.replica)
        ended: Ended = ()
        if replica is not None:
            ended = self._finish_all(list(replica.entries.values()), "E4")
            replica.reset()
        return self._answer("withdraw", "", "ok", replica=command.replica, records=ended)
