"""A Django project with caches of django-redis, and with Channels over both layers of channels_redis.

`django_app.py LAYER TEXT..` sends texts to the chat room, as a process does that serves no browser.
"""

import os
import sys

import django
from asgiref.sync import async_to_sync
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from channels.layers import get_channel_layer
from django.conf import settings

ADDRESS = os.environ["COMPAT_ADDRESS"]
NAME = os.environ.get("COMPAT_NAME", "compat")
ROOM = "room"
# A channel of the layer `small` has room for so many messages, which expire after so many seconds.
CAPACITY, EXPIRY_SECONDS = 5, 1


def cache(**options):
    return {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": f"redis://{ADDRESS}/0",
        "KEY_PREFIX": f"{NAME}-django",
        "OPTIONS": {"CLIENT_CLASS": "django_redis.client.DefaultClient"} | options,
    }


def layer(backend, prefix, **options):
    config = {"hosts": [f"redis://{ADDRESS}/0"], "prefix": f"{NAME}-{prefix}"} | options
    return {"BACKEND": f"channels_redis.{backend}", "CONFIG": config}


settings.configure(
    CACHES={
        "default": cache(),
        "compressed": cache(
            COMPRESSOR="django_redis.compressors.zlib.ZlibCompressor",
            SERIALIZER="django_redis.serializers.json.JSONSerializer",
        ),
    },
    CHANNEL_LAYERS={
        "default": layer("core.RedisChannelLayer", "asgi"),
        "pubsub": layer("pubsub.RedisPubSubChannelLayer", "pubsub"),
        "small": layer("core.RedisChannelLayer", "small", capacity=CAPACITY, expiry=EXPIRY_SECONDS),
    },
    USE_TZ=True,
)
django.setup()


class Chat(AsyncJsonWebsocketConsumer):
    """A chat room for browsers: what one of them sends, all receive."""

    async def connect(self):
        await self.channel_layer.group_add(ROOM, self.channel_name)
        await self.accept()

    async def disconnect(self, code):
        await self.channel_layer.group_discard(ROOM, self.channel_name)

    async def receive_json(self, content):
        await self.channel_layer.group_send(ROOM, {"type": "chat.message", "text": content["text"]})

    async def chat_message(self, event):
        await self.send_json({"text": event["text"]})


class PublishedChat(Chat):
    channel_layer_alias = "pubsub"


def main():
    layer = get_channel_layer(sys.argv[1])
    for text in sys.argv[2:]:
        async_to_sync(layer.group_send)(ROOM, {"type": "chat.message", "text": text})


if __name__ == "__main__":
    main()
