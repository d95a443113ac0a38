"""One report in a period, on any machine. `python examples/report.py HOST:PORT NAME` says whether it made one."""

import sys

import redis

from dlock_redis import Locks


def main(address: str, report: str) -> None:
    host, port = address.split(":")
    with Locks(redis.Redis(host=host, port=int(port))) as locks:
        hold = locks.try_lock(report)
        if hold:  # else another process makes the report, or it is made
            print("made")
            hold.release_after(60)  # nobody gets the lock for a minute more, whether or not this process lives


if __name__ == "__main__":
    main(*sys.argv[1:])
