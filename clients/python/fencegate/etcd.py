"""Elections on etcd, through its JSON gateway: no client library is needed. The keys are those of `fencegate lead`,
`etcdctl elect` and Go's `concurrency.Election`, so all of them can campaign in one election."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from typing import Any, Optional, Sequence, Union

from .election import CoordinatorError, Election, Gone, Term, ask, now

UNAVAILABLE = {1, 4, 8, 10, 13, 14, 15}  # Codes of gRPC after which a retry may succeed.
NOT_FOUND = 5


class EtcdElection(Election):
    """An election on etcd. The token is the `create_revision` of the leader's key, `<name>/<lease in hex>`."""

    def __init__(
        self,
        members: Union[str, Sequence[str]],
        name: str,
        *arguments: Any,
        context: Optional[ssl.SSLContext] = None,
        **options: Any,
    ) -> None:
        super().__init__(name, *arguments, **options)
        if self.ttl != int(self.ttl):
            raise ValueError("etcd's leases have whole seconds")
        if not name or name.endswith("/") or "//" in name:
            raise ValueError("an election's name must not be empty, end with / or contain //")
        self._members = [members] if isinstance(members, str) else list(members)
        self._context = context

    def _campaign(self, term: Term) -> float:
        if not term.lease:
            granted, sent = self._post("lease/grant", {"TTL": int(self.ttl)}, self.ttl)
            term.lease, term.deadline = int(granted["ID"]), sent + min(self.ttl, int(granted["TTL"]))
            term.place = self._enter(term)
        elif now() >= term.deadline - self.ttl + self.renew_every:
            term.deadline = self._renew(term, self.ttl) + self.ttl
        if self._is_first(term):
            term.token = term.place
        return min(0.5, self.renew_every)

    def _enter(self, term: Term) -> int:
        """Puts the candidate's key, unless an earlier attempt has. Its create_revision is the place in the queue."""
        key = encoded(self._key(term.lease))
        candidates = {"request_range": {**self._prefix(), "keys_only": True}}
        put = {"request_put": {"key": key, "value": encoded(self.holder), "lease": term.lease}}
        is_new = {"key": key, "target": "CREATE", "create_revision": 0}
        # The keys of candidates around this election.
        parts = self.name.split("/")
        outer = ["/".join(parts[:count]) + "/" for count in range(1, len(parts)) if any(parts[:count])]
        reads = [candidates] + [
            {"request_range": {"key": encoded(f"{it}0"), "range_end": encoded(f"{it}g"), "keys_only": True, "limit": 500}}
            for it in outer
        ]
        answer = self._transact([is_new], [put, *reads], reads)
        ranges = [it["response_range"].get("kvs", []) for it in answer["responses"] if "response_range" in it]
        inner = [pair for pair in ranges[0] if decoded(pair["key"]).endswith(f"/{lease_of(pair):x}")]
        nested = [pair for pair in inner if decoded(pair["key"]) != self._key(lease_of(pair))]
        for prefix, pairs in zip(outer, ranges[1:]):
            nested += [pair for pair in pairs if decoded(pair["key"]) == f"{prefix}{lease_of(pair):x}"]
        if nested:
            raise CoordinatorError(f"{self.name} is nested with another election: {decoded(nested[0]['key'])}")
        for pair in ranges[0]:
            if pair["key"] == key:
                return int(pair["create_revision"])
        raise Gone

    def _is_first(self, term: Term) -> bool:
        """One transaction proves it: the key exists, as it was put, and no candidate has a lower create_revision."""
        key = encoded(self._key(term.lease))
        is_in_place = [
            {"key": key, "target": "CREATE", "create_revision": term.place},
            {"key": key, "target": "LEASE", "lease": term.lease},
        ]
        ahead = {**self._prefix(), "max_create_revision": term.place - 1, "keys_only": True}
        answer = self._transact(is_in_place, [{"request_range": ahead}], [])
        if not answer.get("succeeded"):
            raise Gone
        pairs = answer["responses"][0]["response_range"].get("kvs", [])
        return not any(lease_of(pair) and decoded(pair["key"]) == self._key(lease_of(pair)) for pair in pairs)

    def _renew(self, term: Term, limit: float) -> float:
        answer, sent = self._post("lease/keepalive", {"ID": term.lease}, limit)
        if int(answer.get("result", {}).get("TTL", 0)) <= 0:
            raise Gone
        return sent

    def _leave(self, term: Term, limit: float) -> None:
        if term.lease:
            self._post("lease/revoke", {"ID": term.lease}, limit)

    def _key(self, lease: int) -> str:
        return f"{self.name}/{lease:x}"

    def _prefix(self) -> dict[str, str]:
        return {"key": encoded(f"{self.name}/"), "range_end": encoded(f"{self.name}0")}  # "0" follows "/".

    def _transact(self, compare: list[Any], success: list[Any], failure: list[Any]) -> Any:
        return self._post("kv/txn", {"compare": compare, "success": success, "failure": failure}, self.ttl)[0]

    def _post(self, path: str, body: dict[str, Any], limit: float) -> tuple[Any, float]:
        """The answer of the first member that answers, and when the answered request was sent."""

        def call(attempt: int) -> tuple[Any, float]:
            member = self._members[attempt % len(self._members)].rstrip("/")
            request = urllib.request.Request(f"{member}/v3/{path}", json.dumps(body).encode())
            sent = now()
            try:
                with urllib.request.urlopen(request, timeout=limit, context=self._context) as response:
                    return json.load(response), sent
            except urllib.error.HTTPError as error:
                answer = json.loads(error.read() or b"{}")
                if answer.get("code") == NOT_FOUND:
                    raise Gone from error
                if answer.get("code", 14) in UNAVAILABLE:
                    raise
                raise CoordinatorError(answer.get("message") or str(error)) from error

        return ask(call, limit, self._attempt)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def decoded(text: str) -> str:
    return base64.b64decode(text).decode(errors="replace")


def lease_of(pair: dict[str, str]) -> int:
    return int(pair.get("lease", 0))
