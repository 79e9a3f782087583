"""Driver of redis-py over asyncio: any command, with the library's conversion of the reply."""

import asyncio
import contextlib
import pathlib
import runpy
import types

import redis.asyncio

plain = pathlib.Path(__file__).resolve().parents[1] / "redis-py/client.py"
sync = types.SimpleNamespace(**runpy.run_path(str(plain)))


def connection(protocol=2, db=0, name=None):
    return redis.asyncio.Redis(host=sync.HOST, port=int(sync.PORT), db=db, protocol=protocol, client_name=name or None)


class Client:
    def __init__(self):
        self.first = self.redis = connection()
        self.listener = None

    async def command(self, name, args):
        if method := sync.METHODS.get(name):
            with contextlib.suppress(TypeError):
                return await method(self.redis, *map(sync.latin, args))
        words = map(sync.latin, sync.words(name, args))
        return await self.redis.execute_command(*words, **sync.options(name, args))

    async def pipeline(self, commands):
        async with self.redis.pipeline(transaction=False) as pipeline:
            return await sync.filled(pipeline, commands).execute(raise_on_error=False)

    async def transaction(self, commands):
        async with self.redis.pipeline() as pipeline:
            return await sync.filled(pipeline, commands).execute(raise_on_error=False)

    async def watched(self, keys, rival, commands):
        async with self.redis.pipeline() as pipeline:
            await pipeline.watch(*map(sync.latin, keys))
            if rival:
                async with connection() as other:
                    await other.execute_command(*map(sync.latin, rival))
            pipeline.multi()
            try:
                return await sync.filled(pipeline, commands).execute()
            except redis.WatchError:
                return None

    async def scan(self, match, count):
        return [key async for key in self.redis.scan_iter(sync.latin(match), count)]

    async def connect(self, protocol, db, name):
        self.redis = connection(protocol, db, name)

    async def reconnects(self):
        pass

    async def subscribe(self, channels, patterns):
        self.listener = self.redis.pubsub()
        if channels:
            await self.listener.subscribe(*channels)
        if patterns:
            await self.listener.psubscribe(*patterns)
        for _ in channels + patterns:
            await self.listener.get_message(timeout=None)

    async def messages(self, count):
        get = self.listener.get_message
        found = [await get(ignore_subscribe_messages=True, timeout=None) for _ in range(count)]
        return [[each["channel"], each["data"], each["pattern"]] for each in found]

    async def reset(self):
        if self.redis is not self.first:
            await self.redis.aclose()
            self.redis = self.first
        if self.listener:
            await self.listener.aclose()
            self.listener = None


def main():
    with asyncio.Runner() as runner:
        client = Client()

        def call(name, values):
            if name.isupper():
                answer = runner.run(client.command(name, values["args"]))
                return {"value": sync.plain(sync.written(name, answer))}
            return {"value": sync.plain(runner.run(getattr(client, name)(**values)))}

        sync.driver.main("redis-py-asyncio", redis.__version__, call)


main()
