//! Categories of commands, as `ACL CAT` of redis-server 7.0.15 lists them: those of this door's commands.

/// Categories in the order of Redis, with their commands and subcommands.
pub(super) const CATEGORIES: [(&str, &str); 21] = [
    (
        "keyspace",
        "copy dbsize del dump exists expire expireat expiretime flushall flushdb keys move object|encoding \
         object|freq object|help object|idletime object|refcount persist pexpire pexpireat pexpiretime pttl \
         randomkey rename renamenx restore scan swapdb touch ttl type unlink",
    ),
    (
        "read",
        "bitcount bitfield_ro bitpos dbsize dump exists expiretime geodist geohash geopos georadius_ro \
         georadiusbymember_ro geosearch get getbit getrange hexists hget hgetall hkeys hlen hmget hrandfield \
         hscan hstrlen hvals keys lcs lindex llen lpos lrange memory|usage mget object|encoding object|freq \
         object|idletime object|refcount pexpiretime pfcount pttl randomkey scan scard sdiff sinter sintercard \
         sismember smembers smismember sort_ro srandmember sscan strlen substr sunion touch ttl type \
         xinfo|consumers xinfo|groups xinfo|stream xlen xpending xrange xread xrevrange zcard zcount zdiff \
         zinter zintercard zlexcount zmscore zrandmember zrange zrangebylex zrangebyscore zrank zrevrange \
         zrevrangebylex zrevrangebyscore zrevrank zscan zscore zunion",
    ),
    (
        "write",
        "append bitfield bitop blmove blmpop blpop brpop brpoplpush bzmpop bzpopmax bzpopmin copy decr decrby \
         del expire expireat flushall flushdb function|delete function|flush function|load function|restore \
         geoadd georadius georadiusbymember geosearchstore getdel getex getset hdel hincrby hincrbyfloat hmset \
         hset hsetnx incr incrby incrbyfloat linsert lmove lmpop lpop lpush lpushx lrem lset ltrim move mset \
         msetnx persist pexpire pexpireat pfadd pfdebug pfmerge psetex rename renamenx restore rpop rpoplpush rpush \
         rpushx sadd sdiffstore set setbit setex setnx setrange sinterstore smove sort spop srem sunionstore \
         swapdb unlink xack xadd xautoclaim xclaim xdel xgroup|create xgroup|createconsumer xgroup|delconsumer \
         xgroup|destroy xgroup|setid xreadgroup xsetid xtrim zadd zdiffstore zincrby zinterstore zmpop zpopmax \
         zpopmin zrangestore zrem zremrangebylex zremrangebyrank zremrangebyscore zunionstore",
    ),
    (
        "set",
        "sadd scard sdiff sdiffstore sinter sintercard sinterstore sismember smembers smismember smove sort \
         sort_ro spop srandmember srem sscan sunion sunionstore",
    ),
    (
        "sortedset",
        "bzmpop bzpopmax bzpopmin sort sort_ro zadd zcard zcount zdiff zdiffstore zincrby zinter zintercard \
         zinterstore zlexcount zmpop zmscore zpopmax zpopmin zrandmember zrange zrangebylex zrangebyscore \
         zrangestore zrank zrem zremrangebylex zremrangebyrank zremrangebyscore zrevrange zrevrangebylex \
         zrevrangebyscore zrevrank zscan zscore zunion zunionstore",
    ),
    (
        "list",
        "blmove blmpop blpop brpop brpoplpush lindex linsert llen lmove lmpop lpop lpos lpush lpushx lrange \
         lrem lset ltrim rpop rpoplpush rpush rpushx sort sort_ro",
    ),
    (
        "hash",
        "hdel hexists hget hgetall hincrby hincrbyfloat hkeys hlen hmget hmset hrandfield hscan hset hsetnx \
         hstrlen hvals",
    ),
    (
        "string",
        "append decr decrby get getdel getex getrange getset incr incrby incrbyfloat lcs mget mset msetnx \
         psetex set setex setnx setrange strlen substr",
    ),
    ("bitmap", "bitcount bitfield bitfield_ro bitop bitpos getbit setbit"),
    ("hyperloglog", "pfadd pfcount pfdebug pfmerge pfselftest"),
    (
        "geo",
        "geoadd geodist geohash geopos georadius georadius_ro georadiusbymember georadiusbymember_ro geosearch \
         geosearchstore",
    ),
    (
        "stream",
        "xack xadd xautoclaim xclaim xdel xgroup|create xgroup|createconsumer xgroup|delconsumer \
         xgroup|destroy xgroup|help xgroup|setid xinfo|consumers xinfo|groups xinfo|help xinfo|stream xlen \
         xpending xrange xread xreadgroup xrevrange xsetid xtrim",
    ),
    (
        "pubsub",
        "psubscribe publish pubsub|channels pubsub|numpat pubsub|numsub pubsub|shardchannels \
         pubsub|shardnumsub punsubscribe spublish ssubscribe subscribe sunsubscribe unsubscribe",
    ),
    (
        "admin",
        "acl|deluser acl|dryrun acl|getuser acl|list acl|load acl|log acl|save acl|setuser acl|users \
         client|kill client|list client|no-evict client|pause client|unblock client|unpause cluster|meet \
         cluster|replicas cluster|reset cluster|slaves config|get config|resetstat config|rewrite config|set \
         debug lastsave latency|doctor latency|graph latency|histogram latency|history latency|latest \
         latency|reset module|list module|load module|loadex module|unload monitor role slowlog|get slowlog|len \
         pfdebug pfselftest slowlog|reset",
    ),
    (
        "fast",
        "append asking auth bitfield_ro bzpopmax bzpopmin dbsize decr decrby discard echo exists expire \
         expireat expiretime get getbit getdel getex getset hdel hello hexists hget hincrby hincrbyfloat hlen \
         hmget hmset hset hsetnx hstrlen incr incrby incrbyfloat lastsave llen lpop lpush lpushx mget move \
         multi persist pexpire pexpireat pexpiretime pfadd ping pttl publish quit readonly readwrite renamenx \
         reset role rpop rpush rpushx sadd scard select setnx sismember smismember smove spop spublish srem \
         strlen swapdb time touch ttl type unlink unwatch watch xack xadd xautoclaim xclaim xdel xlen xsetid \
         zadd zcard zcount zincrby zlexcount zmscore zpopmax zpopmin zrank zrem zrevrank zscore",
    ),
    (
        "slow",
        "acl acl|cat acl|deluser acl|dryrun acl|genpass acl|getuser acl|list acl|load acl|log acl|save \
         acl|setuser acl|users acl|whoami bitcount bitfield bitop bitpos blmove blmpop blpop brpop brpoplpush \
         bzmpop client client|caching client|getname client|getredir client|id client|info client|kill \
         client|list client|no-evict client|pause client|reply client|setname client|tracking \
         client|trackinginfo client|unblock client|unpause cluster cluster|countkeysinslot \
         cluster|getkeysinslot cluster|help cluster|info cluster|keyslot cluster|links cluster|meet \
         cluster|myid cluster|nodes cluster|replicas cluster|reset cluster|shards cluster|slaves cluster|slots \
         command command|count command|docs command|getkeys command|info command|list config config|get \
         config|resetstat config|rewrite config|set copy debug del dump eval eval_ro evalsha evalsha_ro exec \
         fcall fcall_ro pfdebug pfselftest \
         flushall flushdb function function|delete function|dump function|flush function|kill function|list \
         function|load function|restore function|stats geoadd geodist geohash geopos georadius georadius_ro \
         georadiusbymember georadiusbymember_ro geosearch geosearchstore getrange hgetall hkeys hrandfield \
         hscan hvals info keys latency latency|doctor latency|graph latency|histogram latency|history \
         latency|latest latency|reset lcs lindex linsert lmove lmpop lpos lrange lrem lset ltrim memory \
         memory|doctor memory|malloc-stats memory|purge memory|stats memory|usage module module|list \
         module|load module|loadex module|unload monitor mset msetnx object object|encoding object|freq object|help \
         object|idletime object|refcount pfcount pfmerge psetex psubscribe pubsub pubsub|channels pubsub|numpat \
         pubsub|numsub pubsub|shardchannels pubsub|shardnumsub punsubscribe randomkey rename restore rpoplpush \
         scan script script|debug script|exists script|flush script|kill script|load sdiff sdiffstore set \
         setbit setex setrange sinter sintercard sinterstore slowlog slowlog|get slowlog|len slowlog|reset \
         smembers sort sort_ro srandmember sscan ssubscribe subscribe substr sunion sunionstore sunsubscribe \
         unsubscribe wait xgroup xgroup|create xgroup|createconsumer xgroup|delconsumer xgroup|destroy \
         xgroup|help xgroup|setid xinfo xinfo|consumers xinfo|groups xinfo|help xinfo|stream xpending xrange \
         xread xreadgroup xrevrange xtrim zdiff zdiffstore zinter zintercard zinterstore zmpop zrandmember \
         zrange zrangebylex zrangebyscore zrangestore zremrangebylex zremrangebyrank zremrangebyscore zrevrange \
         zrevrangebylex zrevrangebyscore zscan zunion zunionstore",
    ),
    ("blocking", "blmove blmpop blpop brpop brpoplpush bzmpop bzpopmax bzpopmin xread xreadgroup"),
    (
        "dangerous",
        "acl|deluser acl|dryrun acl|getuser acl|list acl|load acl|log acl|save acl|setuser acl|users \
         client|kill client|list client|no-evict client|pause client|unblock client|unpause cluster|meet \
         cluster|replicas cluster|reset cluster|slaves config|get config|resetstat config|rewrite config|set \
         debug flushall flushdb info keys lastsave latency|doctor latency|graph latency|histogram \
         latency|history latency|latest latency|reset module|list module|load module|loadex module|unload monitor \
         pfdebug pfselftest restore role slowlog|get slowlog|len slowlog|reset sort sort_ro swapdb",
    ),
    (
        "connection",
        "asking auth client|caching client|getname client|getredir client|id client|info client|kill \
         client|list client|no-evict client|pause client|reply client|setname client|tracking \
         client|trackinginfo client|unblock client|unpause command command|count command|docs command|getkeys \
         command|info command|list echo hello ping quit readonly readwrite reset select wait",
    ),
    ("transaction", "discard exec multi unwatch watch"),
    (
        "scripting",
        "eval eval_ro evalsha evalsha_ro fcall fcall_ro \
         function|delete function|dump function|flush function|kill \
         function|list function|load function|restore function|stats script|debug script|exists \
         script|flush script|kill script|load",
    ),
];

/// Returns the commands and subcommands of a category, in lower case.
pub(super) fn commands_of(category: &str) -> Option<impl Iterator<Item = &'static str>> {
    let (_, commands) = CATEGORIES.iter().find(|(name, _)| name.eq_ignore_ascii_case(category))?;
    Some(commands.split_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::redis::commands;

    /// Subcommands of a later version than 7.0, and those of Redis Cluster, which is refused as a whole.
    const WITHOUT: [&str; 2] = ["client|setinfo", "cluster"];

    #[test]
    fn every_command_is_in_a_category_and_every_name_is_a_command() {
        let named: BTreeSet<&str> = CATEGORIES.iter().flat_map(|(_, all)| all.split_ascii_whitespace()).collect();
        for name in &named {
            let (command, part) = name.split_once('|').map_or((*name, None), |(command, part)| (command, Some(part)));
            let command = commands::find(command.as_bytes()).unwrap_or_else(|| panic!("{name}"));
            let is_part = |part: &str| command.parts.iter().any(|(known, _)| known.eq_ignore_ascii_case(part));
            assert!(part.is_none_or(|part| is_part(part) || part == "help"), "{name}");
        }
        for command in commands::all() {
            let name = command.name.to_ascii_lowercase();
            let whole = [name.clone()];
            let parts = command.parts.iter().map(|(part, _)| format!("{name}|{}", part.to_ascii_lowercase()));
            let all: Vec<String> = if command.parts.is_empty() { whole.into() } else { parts.collect() };
            for one in all.iter().filter(|one| !WITHOUT.iter().any(|without| one.starts_with(without))) {
                assert!(named.contains(one.as_str()), "{one}");
            }
        }
    }
}
