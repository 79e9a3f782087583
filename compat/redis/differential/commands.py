"""Random commands: on few keys, so that they conflict, and many of them invalid.

A form is a line. Words in capitals are literal, `name` in angle brackets is a word of a pool, `[..]` is optional,
`(..|..)` is one of several, `{..}` is repeated one to three times, and the parts of `~(..)` are in any order.
"""

import random
import re

FAR_S, FAR_MS = 4102444800, 4102444800000
# Times that expire immediately, or that exceed the duration of any run.
SECONDS = ["1000000", "2000000", "5000000", "0", "-1", "9223372036854775807", "9223372036854775", "1e3", "abc"]
MILLISECONDS = ["1000000000", "2000000000", "0", "-5", "9223372036854775807", "1.5", ""]
MOMENTS = [str(FAR_S), str(FAR_S + 100), str(FAR_S + 1000), "1", "0", "-1", "9223372036854775807"]
MOMENTS_MS = [str(FAR_MS), str(FAR_MS + 100), str(FAR_MS + 5000), "1", "0", "-1", "9223372036854775807"]
SMALL = ["0", "1", "-1", "2", "-2", "3", "5", "-5", "10", "100", "-100"]
# Numbers at the limits, and texts that some parsers accept as numbers.
ODD = [
    "9223372036854775807", "-9223372036854775808", "9223372036854775808", "4294967296", "1e3", "inf", "-inf", "+inf",
    "nan", " 1", "1 ", "+1", "0x10", "", "abc", "01", "1.5", "3.0", "--1", "1_0", "99999999999999999999", "1e400",
    "1e-400", "0" * 300 + "1.5",
]
DOUBLES = [
    "0", "1", "-1", "1.5", "-2.5", "0.1", "1e3", "3.0e2", "1e-5", "100", "7.25", "inf", "-inf", "2", "1e17",
    "123456.75",
]
LONG = "long-" * 14
KEYS = {
    "s": ["s1", "s2", "s3"],
    "h": ["h1", "h2"],
    "l": ["l1", "l2", "l3"],
    "e": ["e1", "e2", "e3"],
    "z": ["z1", "z2", "z3"],
    # Sorted sets whose scores are all 0: for other scores, ranges by name have no defined meaning.
    "y": ["y1", "y2"],
    "x": ["x1", "x2"],
    # Sorted sets of places, and sketches.
    "p": ["p1", "p2", "p3"],
    "u": ["u1", "u2", "u3"],
}
ANY = [key for family in "shlezx" for key in KEYS[family]] + ["none", "", "a b\r\n\xff"]
MEMBERS = [f"m{at}" for at in range(12)]
MEMBERS += ["1", "2", "3", "10", "-7", "1.5", "", "\xff\xfe", LONG, "a", "b", "B", "A b"]
MANY = [f"many-{at}" for at in range(200)]
TOWNS = 40
_places = random.Random(7)
# Each town has one place, so that no two are equally far from a third.
SPOTS = [f"{_places.uniform(-180, 180):.7f} {_places.uniform(-85, 85):.7f} town{at}" for at in range(TOWNS // 2)]
SPOTS += [f"{_places.uniform(10, 16):.7f} {_places.uniform(36, 40):.7f} town{at}" for at in range(TOWNS // 2, TOWNS)]
POOLS = {
    "v": ["v", "hello", "", "10", "-3", "9223372036854775807", "9223372036854775806", "1.5", "0.1", "abc\0def"]
    + ["\xff\x0f", LONG, "12345", "0", " 1", "foobar", "\x00\x00\x00"],
    "m": MEMBERS,
    "f": [f"f{at}" for at in range(6)] + ["", LONG, "1"],
    "i": SMALL * 4 + ODD,
    "n": ["1", "2", "3", "0", "5", "10"] * 4 + ODD,
    "d": DOUBLES * 3 + ODD,
    "bit": ["0", "1"] * 5 + ["2", "-1", "abc"],
    "offset": ["0", "1", "7", "8", "9", "63", "64", "100", "1000"] * 3 + ["-1", "4294967296", "abc", "1.5"],
    "type": ["u8", "i8", "u4", "i5", "u1", "i64", "u63", "u32", "i16"] * 3 + ["u64", "i65", "i0", "x8", "8"],
    "place": ["0", "1", "8", "#0", "#1", "#3", "100", "16"] * 3 + ["-1", "#-1", "abc", "#"],
    "s_": SECONDS, "ms": MILLISECONDS, "at": MOMENTS, "atms": MOMENTS_MS,
    "score": ["-inf", "+inf", "inf", "0", "1", "2", "(1", "(2", "5", "(inf", "-1.5", "(0", "100"] * 3
    + ["nan", "abc", "(", ""],
    "lex": ["-", "+", "[a", "(a", "[b", "(b", "[m1", "(m5", "[", "(", "[z"] * 3 + ["a", "", "m"],
    "id": ["0", "1", "2-1", "3-0", "5", "5-5", "7-1", "10-0"] * 3
    + ["18446744073709551615-18446744073709551615", "abc", "1-", "-1", "1-2-3", "0-0", "18446744073709551616", ""],
    "new": [f"{at}-{part}" for at in range(1, 30) for part in (0, 1, 2)]
    + ["5-*", "40-*", "0-0", "0-*", "abc", "7", "1-1-1"],
    "from": ["-", "+", "0", "1", "(1", "(2-1", "5-0", "(", "(-", "10"] * 3 + ["abc", "(+", "-1"],
    "g": ["g1"] * 8 + ["g2"] * 3 + ["none"],
    "c": ["alice", "bob", "carol"],
    "idle": ["0", "0", "1000000000", "-1", "abc"],
    "glob": ["*", "?1", "[a-m]*", "s*", "[^s]*", "\\*", "m?", "*1", "", "none", "[", "m[0-5]", "[1-"],
    "db": ["0", "1"] * 4 + ["16", "-1", "abc", "99999999999"],
    "lon": ["13.361389", "15.087269", "0", "-0.1", "179.99999", "-180", "180", "2.349014", "13.5", "-73.9"] * 3
    + ["180.1", "-200", "inf", "abc"],
    "lat": ["38.115556", "37.502669", "0", "0.1", "85.05", "-85.05112878", "85.05112878", "48.864716", "38", "-40.7"] * 3
    + ["85.06", "-90", "nan", ""],
    "town": [f"town{at}" for at in range(TOWNS)] + ["edge", "none", ""],
    "far": ["200", "1", "0", "500.5", "3000", "1e2", "20000", "0.5", "7000"] * 2 + ["-1", "abc", "inf"],
    "unit": ["m", "km", "km", "km", "ft", "mi", "KM"] * 2 + ["yd", ""],
    "many": [" ".join(MANY[:150])],
    "odd": ODD,
}
SET_TIME = "[(EX <s_>|PX <ms>|EXAT <at>|PXAT <atms>|KEEPTTL)]"
Z_RANGE = "~([(BYSCORE|BYLEX)] [REV] [LIMIT <i> <i>] [WITHSCORES])"
Z_MANY = "(1 <z>|2 <z> <z>|3 <z> <z> <z>|2 <z> <e>|<n> <z> <z>)"
Z_HOW = "~([WEIGHTS {<d>}] [AGGREGATE (SUM|MIN|MAX|AVG)] [WITHSCORES])"
Z_STORE = "~([WEIGHTS <d> <d>] [AGGREGATE (SUM|MIN|MAX)])"
X_TRIM = "(MAXLEN [=] <n>|MINID [=] <id>|(MAXLEN|MAXLEN|MINID) ~ <n> [LIMIT <n>]|MINID ~ <id>|MAXLEN 5 LIMIT 3|MAXLEN -1)"
G_SHAPE = "(BYRADIUS <far> <unit>|BYBOX <far> <far> <unit>)"
G_FROM = "(FROMMEMBER <town>|FROMLONLAT <lon> <lat>)"
G_ORDER = "[(ASC|DESC)] [COUNT <n> [ANY]]"
G_WITH = "[WITHDIST] [WITHCOORD] [WITHHASH]"
STREAMS = "(STREAMS <x> <id>|STREAMS <x> <x> <id> <id>|STREAMS <x> $|STREAMS <x> <x> <id>)"
BIT_PART = "GET <type> <place>|SET <type> <place> <i>|INCRBY <type> <place> <i>"
FORMS = {
    "strings": [
        "GET <s>", "GET <s>", f"SET <s> <v> ~([(NX|XX)] [GET] {SET_TIME})", f"SET <s> <v> {SET_TIME}", "SETNX <s> <v>",
        "SETEX <s> <s_> <v>", "PSETEX <s> <ms> <v>", "GETSET <s> <v>", "GETDEL <s>", "APPEND <s> <v>", "STRLEN <s>",
        "GETEX <s> [(EX <s_>|PX <ms>|EXAT <at>|PXAT <atms>|PERSIST)]", "GETRANGE <s> <i> <i>", "SUBSTR <s> <i> <i>",
        "SETRANGE <s> <offset> <v>", "MGET {<s>}", "MSET {<s> <v>}", "MSETNX {<s> <v>}", "LCS <s> <s> ~([LEN] [IDX])",
        "LCS <s> <s> IDX ~([MINMATCHLEN <n>] [WITHMATCHLEN])",
    ],
    "counters": [
        "INCR <s>", "DECR <s>", "INCRBY <s> <i>", "DECRBY <s> <i>", "INCRBYFLOAT <s> <d>", "SET <s> <odd>",
        "SET <s> <i>",
    ],
    "bits": [
        "SETBIT <s> <offset> <bit>", "GETBIT <s> <offset>", "BITCOUNT <s> [<i> <i> [(BYTE|BIT)]]",
        "BITPOS <s> <bit> [<i> [<i> [(BYTE|BIT)]]]", "BITOP (AND|OR|XOR) <s> {<s>}", "BITOP NOT <s> <s>",
        "BITOP NOT <s> <s> <s>",
        f"BITFIELD <s> {{({BIT_PART}|OVERFLOW (WRAP|SAT|FAIL|NONE))}}",
        "BITFIELD_RO <s> {(GET <type> <place>|GET <type> <place>|SET <type> <place> <i>)}",
    ],
    "expiry": [
        "EXPIRE <k> <s_> [(NX|XX)]", "PEXPIRE <k> <ms> [(NX|XX)]", "EXPIREAT <k> <at> ~([(NX|XX)] [(GT|LT)])",
        "PEXPIREAT <k> <atms> ~([(NX|XX)] [(GT|LT)])", "TTL <k>", "PTTL <k>", "EXPIRETIME <k>", "PEXPIRETIME <k>",
        "PERSIST <k>",
    ],
    "keys": [
        "DEL {<k>}", "UNLINK <k>", "EXISTS {<k>}", "TOUCH {<k>}", "TYPE <k>", "KEYS <glob>", "RENAME (<k> <w>|<q> <q>)",
        "RENAMENX (<k> <w>|<q> <q>)", "COPY (<k> <w>|<q> <q>) ~([DB <db>] [REPLACE])", "MOVE <k> <db>", "DBSIZE", "RANDOMKEY",
        "OBJECT ENCODING <k>", "RESTORE <s> <ms> <v> ~([REPLACE] [ABSTTL] [IDLETIME <n>] [FREQ <n>])",
        "SCAN 0 ~(COUNT 100000 [MATCH <glob>] [TYPE (string|list|zset|hash|set|stream|none)])", "SCAN (abc|1.5)",
        "ECHO <v>", "PING [<v>]", "SELECT <db>",
        "SORT (<l>|<e>|<z>) ~([LIMIT <i> <i>] [(ASC|DESC)] [ALPHA] [STORE <l>])",
        "SORT (<l>|<e>) BY s* ~([GET #] [GET s*] [GET h1->*])", "SORT (<l>|<e>|<z>) BY nosort ~([GET #] [DESC])",
        "SORT (<l>|<z>) BY nosort ~([GET #] [DESC] [LIMIT <i> <i>])",
        "SORT_RO <l> ~([ALPHA] [DESC])", "CLIENT SETNAME (a|b|\x20c)", "CLIENT GETNAME", "CLIENT NOSUCH",
        "OBJECT NOSUCH <k>", "NOSUCH {<v>}", "OBJECT FREQ <k>",
    ],
    # Mutations of these forms must not end or pause clients, or block: such commands are tested by hand.
    "tools": [
        "CLIENT LIST NOSUCH foo", "CLIENT TRACKING (off|foo)", "CLIENT NO-EVICT (off|foo)", "CLIENT TRACKINGINFO",
        "CLIENT GETREDIR", "CLIENT CACHING yes", "FUNCTION FLUSH [(SYNC|foo)]", "FUNCTION KILL",
        "FUNCTION LIST [(WITHCODE|LIBRARYNAME|foo)]", "SCRIPT FLUSH [(ASYNC|foo)]", "SCRIPT EXISTS {<v>}", "SCRIPT KILL",
        "MODULE LIST", "SLOWLOG RESET foo", "LATENCY LATEST", "LATENCY GRAPH foo", "CLUSTER (INFO|NODES|NOSUCH)",
        "READONLY", "CONFIG SET nosuch <v>", "CONFIG SET databases 3", "CONFIG SET activedefrag maybe",
        "COMMAND GETKEYS SORT <l> ~([BY s*] [GET #] [STORE <l>] [DESC])", "COMMAND GETKEYS (GET <s>|KEYS *|NOSUCH <s>)",
        "COMMAND GETKEYS (LMPOP <n> <l> LEFT|MSET <s> <v>)", "AUTH nobody <v>", "ACL WHOAMI",
        "PUBSUB (SHARDCHANNELS|SHARDNUMSUB|NOSUCH)", "SPUBLISH <v> <v>",
    ],
    "hashes": [
        "HSET <h> {<f> <v>}", "HSET <h> {<f> <v>}", "HMSET <h> {<f> <v>}", "HSETNX <h> <f> <v>", "HGET <h> <f>",
        "HMGET <h> {<f>}", "HGETALL <h>", "HKEYS <h>", "HVALS <h>", "HLEN <h>", "HEXISTS <h> <f>", "HDEL <h> {<f>}",
        "HSTRLEN <h> <f>", "HINCRBY <h> <f> <i>", "HINCRBYFLOAT <h> <f> <d>",
        "HSCAN <h> 0 ~(COUNT 100000 [MATCH <glob>])", "HRANDFIELD <h> [<n> [WITHVALUES]]", "HSET <h> <f> <odd>",
        "HMSET <h> <many>",
    ],
    "lists": [
        "LPUSH <l> {<m>}", "RPUSH <l> {<m>}", "RPUSH <l> {<m>}", "LPUSHX <l> {<m>}", "RPUSHX <l> {<m>}",
        "LPOP <l> [<n>]", "RPOP <l> [<n>]", "LLEN <l>", "LRANGE <l> <i> <i>", "LINDEX <l> <i>", "LSET <l> <i> <m>",
        "LINSERT <l> (BEFORE|AFTER|OVER) <m> <m>", "LREM <l> <i> <m>", "LTRIM <l> <i> <i>",
        "LPOS <l> <m> ~([RANK <i>] [COUNT <n>] [MAXLEN <n>])", "LMOVE <l> <l> (LEFT|RIGHT) (LEFT|RIGHT|UP)",
        "RPOPLPUSH <l> <l>", "LMPOP (1 <l>|2 <l> <l>|<n> <l>) (LEFT|RIGHT) [COUNT <n>]", "BLPOP {<l>} 0.001",
        "BRPOP <l> (0.001|-1|abc)", "BLMOVE <l> <l> LEFT RIGHT 0.001", "BRPOPLPUSH <l> <l> 0.001",
        "BLMPOP 0.001 2 <l> <l> (LEFT|RIGHT) [COUNT <n>]", "RPUSH <l> <many>",
    ],
    "sets": [
        "SADD <e> {<m>}", "SADD <e> {<m>}", "SADD <e> {<i>}", "SREM <e> {<m>}", "SMEMBERS <e>", "SCARD <e>",
        "SISMEMBER <e> <m>", "SMISMEMBER <e> {<m>}", "SMOVE <e> <e> <m>", "SINTER {<e>}", "SUNION {<e>}", "SDIFF {<e>}",
        "SINTERSTORE <e> {<e>}", "SUNIONSTORE <e> {<e>}", "SDIFFSTORE <e> {<e>}",
        "SINTERCARD (1 <e>|2 <e> <e>|<n> <e> <e>) [LIMIT <n>]", "SPOP <e> (1000|0|-1|abc)", "SRANDMEMBER <e> [<i>]",
        "SSCAN <e> 0 ~(COUNT 100000 [MATCH <glob>])", "SADD <e> <many>",
    ],
    "sorted sets": [
        "ZADD <z> ~([(NX|XX)] [(GT|LT)] [CH]) {<d> <m>}", "ZADD <z> {<d> <m>}", "ZADD <z> ~([XX] [INCR]) <d> <m>",
        "ZINCRBY <z> <d> <m>", "ZREM <z> {<m>}", "ZCARD <z>", "ZSCORE <z> <m>", "ZMSCORE <z> {<m>}", "ZRANK <z> <m>",
        "ZREVRANK <z> <m>", "ZRANGE <z> <i> <i> [REV] [WITHSCORES]",
        f"ZRANGE <z> <score> <score> BYSCORE ~([REV] [LIMIT <i> <i>] [WITHSCORES])",
        f"ZRANGE <y> <lex> <lex> BYLEX ~([REV] [LIMIT <i> <i>])", f"ZRANGE <y> <i> <lex> {Z_RANGE}",
        "ZREVRANGE <z> <i> <i> [WITHSCORES]", "ZRANGEBYSCORE <z> <score> <score> ~([WITHSCORES] [LIMIT <i> <i>])",
        "ZREVRANGEBYSCORE <z> <score> <score> ~([WITHSCORES] [LIMIT <i> <i>])", "ZCOUNT <z> <score> <score>",
        "ZLEXCOUNT <y> <lex> <lex>", "ZRANGEBYLEX <y> <lex> <lex> [LIMIT <i> <i>]",
        "ZREVRANGEBYLEX <y> <lex> <lex> [LIMIT <i> <i>]", "ZREMRANGEBYLEX <y> <lex> <lex>",
        "ZREMRANGEBYRANK <z> <i> <i>", "ZREMRANGEBYSCORE <z> <score> <score>", "ZADD <y> {0 <m>}", "ZADD <y> {0 <m>}",
        "ZREM <y> <m>", "ZPOPMIN <z> [<n>]", "ZPOPMAX <z> [<n>]",
        "ZMPOP (1 <z>|2 <z> <z>|<n> <z>) (MIN|MAX|MID) [COUNT <n>]", f"ZUNION {Z_MANY} {Z_HOW}",
        f"ZINTER {Z_MANY} {Z_HOW}", f"ZDIFF {Z_MANY} [WITHSCORES]", f"ZUNIONSTORE <z> 2 <z> (<z>|<e>) {Z_STORE}",
        f"ZINTERSTORE <z> 2 <z> (<z>|<e>) {Z_STORE}", f"ZDIFFSTORE <z> {Z_MANY}", f"ZINTERCARD {Z_MANY} [LIMIT <n>]",
        "ZRANGESTORE <z> <z> (<i> <i>|<score> <score> BYSCORE) ~([REV] [LIMIT <i> <i>])",
        "ZSCAN <z> 0 ~(COUNT 100000 [MATCH <glob>])", "ZRANDMEMBER <z> [<n> [WITHSCORES]]", "BZPOPMIN {<z>} 0.001",
        "BZPOPMAX <z> (0.001|-1|abc)", "BZMPOP 0.001 1 <z> (MIN|MAX) [COUNT <n>]",
    ],
    "places": [
        "GEOADD <p> {<spot>}", "GEOADD <p> {<spot>}", "GEOADD <p> ~([(NX|XX)] [CH]) {<spot>}", "GEOADD <p> <lon> <lat> edge",
        "GEOADD <p> [CH] <spot> <lon> <lat> edge", "(DEL|UNLINK) <p>", "COPY <p> <p> [REPLACE]",
        "GEOPOS <p> {<town>}", "GEOHASH <p> {<town>}", "GEODIST <p> <town> <town> [<unit>]",
        f"GEOSEARCH <p> ~({G_FROM} {G_SHAPE} {G_ORDER} {G_WITH})", f"GEOSEARCH <p> {G_FROM} {G_SHAPE} {G_WITH}",
        f"GEOSEARCH <p> {G_FROM} {G_SHAPE}", f"GEOSEARCHSTORE <p> <p> {G_FROM} {G_SHAPE} ~({G_ORDER} [STOREDIST] [WITHDIST])",
        f"GEORADIUS <p> <lon> <lat> <far> <unit> ~({G_ORDER} {G_WITH})",
        f"GEORADIUS <p> <lon> <lat> <far> <unit> ~({G_ORDER} [(STORE|STOREDIST) <p>])",
        f"GEORADIUS_RO <p> <lon> <lat> <far> <unit> ~({G_ORDER} {G_WITH} [STORE <p>])",
        f"GEORADIUSBYMEMBER <p> <town> <far> <unit> ~({G_ORDER} {G_WITH} [STORE <p>])",
        f"GEORADIUSBYMEMBER_RO <p> <town> <far> <unit> ~({G_ORDER} {G_WITH})", "ZRANGE <p> 0 -1 WITHSCORES", "ZREM <p> <town>",
    ],
    "sketches": [
        "PFADD <u> {<m>}", "PFADD <u> {<f>}", "PFADD <u> <many>", "PFADD <u> <many>", "PFADD <u>", "PFCOUNT {<u>}",
        "PFDEBUG (GETREG|DECODE|ENCODING|TODENSE|foo) <u>", "PFDEBUG DECODE <u> <v>", "PFDEBUG DECODE <u>",
        "PFCOUNT <u>", "PFMERGE <u> {<u>}", "PFMERGE <u>", "STRLEN <u>", "SET <u> <v>", "DEL <u>",
        "GETRANGE <u> 0 7", "GETRANGE <u> 16 -1", "COPY u1 (u2|u3) [REPLACE]",
    ],
    # Commands on keys that are streams.
    "keys of streams": [
        "DEL {<x>}", "EXISTS {<x>}", "TOUCH {<x>}", "TYPE <x>", "RENAME <x> <x>", "RENAME (<x> <w>|<k> <x>)",
        "RENAMENX <x> <x>", "COPY <x> <x> ~([DB <db>] [REPLACE])", "COPY (<x> <w>|<k> <x>) [REPLACE]", "MOVE <x> <db>",
        "OBJECT ENCODING <x>", "SET <x> <v>", "SETNX <x> <v>", "GETSET <x> <v>", "MSET {<x> <v>}", "LPUSH <x> <m>",
        "HSET <x> <f> <v>", "SADD <x> <m>", "ZADD <x> 1 <m>", "GETDEL <x>", "APPEND <x> <v>", "INCR <x>", "SORT <x>",
        "EXPIRE <x> <s_>", "PEXPIREAT <x> <atms>", "PERSIST <x>", "TTL <x>", "EXPIRETIME <x>", "SUNIONSTORE <x> <e>",
        "SORT <l> ALPHA STORE <x>", "BITOP NOT <x> <s>", "BLPOP <x> 0.001", "BZPOPMIN <x> 0.001", "SCAN 0 COUNT 100000 TYPE stream",
        "DBSIZE", "KEYS x*", "XADD <x> <new> {<f> <v>}", "XADD <x> <new> {<f> <v>}", "XADD <k> <new> {<f> <v>}",
        "XLEN <k>", "XGROUP CREATE <k> g1 0 MKSTREAM", "SELECT <db>", "GETEX <x> PERSIST", "LMOVE <l> <x> LEFT RIGHT",
        "ZRANGESTORE <x> <z> 0 -1", "SMOVE <e> <x> <m>", "MSETNX {<x> <v>}",
    ],
    "streams": [
        f"XADD <x> ~([NOMKSTREAM] [{X_TRIM}]) <new> {{<f> <v>}}", "XADD <x> <new> {<f> <v>}",
        "XADD <x> <new> {<f> <v>}", "XLEN <x>", "XRANGE <x> <from> <from> [COUNT <i>]",
        "XREVRANGE <x> <from> <from> [COUNT <i>]", "XDEL <x> {<id>}", f"XTRIM <x> {X_TRIM}",
        f"XREAD ~([COUNT <i>] [BLOCK 1]) {STREAMS}", "XGROUP CREATE <x> <g> (0|$|-|+|<id>) ~([MKSTREAM] [ENTRIESREAD <i>])",
        "XGROUP CREATE <x> g1 (0|$) MKSTREAM", "XGROUP CREATE <x> <g> (0|$) MKSTREAM",
        "XGROUP CREATECONSUMER <x> <g> <c>", "XGROUP DELCONSUMER <x> <g> <c>", "XGROUP DESTROY <x> <g>",
        "XGROUP SETID <x> <g> (0|$|-|+|<id>) [ENTRIESREAD <i>]", "XGROUP NOSUCH <x> <g>",
        "XREADGROUP GROUP <g> <c> ~([COUNT <n>] [NOACK]) STREAMS <x> (\\>|\\>|<id>)",
        "XREADGROUP GROUP g1 <c> STREAMS <x> \\>", "XREADGROUP GROUP g1 <c> STREAMS <x> \\>",
        "XREADGROUP GROUP <g> <c> BLOCK 1 STREAMS <x> <x> \\> \\>", "XACK <x> <g> {<id>}", "XACK <x> <g> {<new>}",
        "XPENDING <x> <g>", "XPENDING <x> <g> [IDLE (0|1000000000)] <from> <from> <n> [<c>]",
        "XCLAIM <x> <g> <c> <idle> {<new>} ~([IDLE 5] [TIME 5] [RETRYCOUNT <n>] [FORCE] [JUSTID] [LASTID <id>])",
        "XAUTOCLAIM <x> <g> <c> <idle> <from> ~([COUNT <n>] [JUSTID])", "XINFO STREAM <x>", "XINFO GROUPS <x>",
        "XINFO CONSUMERS <x> <g>",
    ],
}
# Rare commands, because each affects many keys.
RARE = ["FLUSHDB", "FLUSHALL SYNC", "FLUSHDB NOSUCH"]
# Each is sent after all streams were deleted, which the broker does not exchange.
SWAPS = ["SWAPDB 0 1", "SWAPDB 1 0", "SWAPDB <db> <db>"]
RARE_CHANCE = 0.0005
OTHER_FAMILY_CHANCE = 0.06
MUTATION_CHANCE = 0.06
# Probability that an id of a stream is near the newest of all ids.
NEAR_CHANCE = 0.6
TOKEN = re.compile(r"<\w+>|~\(|[\[\](){}|]|[^\s\[\](){}|<]+")


def parsed(form):
    tokens = TOKEN.findall(form)
    at = 0

    def sequence(ends):
        nonlocal at
        found = []
        while at < len(tokens) and tokens[at] not in ends:
            token = tokens[at]
            at += 1
            if token in ("[", "{", "~("):
                inside = sequence({"[": "]", "{": "}", "~(": ")"}[token])
                at += 1
                found.append((token, inside))
            elif token == "(":
                choices = [sequence("|)")]
                while tokens[at] == "|":
                    at += 1
                    choices.append(sequence("|)"))
                at += 1
                found.append(("(", choices))
            else:
                kind = "<" if token.startswith("<") else "word"
                found.append((kind, token.strip("<>") if kind == "<" else token.removeprefix("\\")))
        return found

    return sequence("")


class Commands:
    """Generator of commands. It never generates those in `without`."""

    def __init__(self, seed, without=()):
        self.random, self.without = random.Random(seed), {name.upper() for name in without}
        families = ([parsed(form) for form in forms if self.is_wanted(form)] for forms in FORMS.values())
        self.families = [family for family in families if family]
        self.newest = 0
        self.rare = [parsed(form) for form in RARE if self.is_wanted(form)]

    def is_wanted(self, form):
        return form.split()[0] not in self.without

    def one(self):
        """Returns a command that does not block, and whose reply does not depend on the time or on chance."""
        while True:
            command = self.made()
            if is_certain(command):
                return command

    def made(self):
        pick = self.random
        if self.rare and pick.random() < RARE_CHANCE:
            return self.words(pick.choice(self.rare))
        command = self.words(pick.choice(pick.choice(self.families)))
        if pick.random() < MUTATION_CHANCE:
            self.mutate(command)
        return command

    def words(self, form):
        out = []
        self.fill(form, out)
        return out

    def fill(self, form, out):
        pick = self.random
        for kind, what in form:
            if kind == "word":
                out.append(self.cased(what))
            elif kind == "<":
                self.from_pool(what, out)
            elif kind == "[":
                if pick.random() < 0.35:
                    self.fill(what, out)
            elif kind == "(":
                self.fill(pick.choice(what), out)
            elif kind == "{":
                for _ in range(pick.choice((1, 1, 2, 3))):
                    self.fill(what, out)
            else:
                self.in_any_order(what, out)

    def in_any_order(self, parts, out):
        """Shuffles optional parts as options. All other words stay together, because they depend on each other."""
        groups, words = [], []
        for part in parts:
            if part[0] == "[":
                groups.append([part])
            else:
                words.append(part)
        groups += [words] if words else []
        self.random.shuffle(groups)
        for group in groups:
            self.fill(group, out)

    def cased(self, word):
        if self.random.random() < 0.1:
            return "".join(self.random.choice((each.lower(), each.upper())) for each in word)
        return word

    def from_pool(self, name, out):
        pick = self.random
        if name == "k":
            out.append(pick.choice(ANY))
        elif name in "qw":
            # The order of a set is not defined, so that no set may become the value of a key in an order.
            out.append(pick.choice([key for key in ANY if key.startswith(("l", "z")) == (name == "q")]))
        elif name in KEYS:
            is_other = pick.random() < OTHER_FAMILY_CHANCE
            # Other sorted sets have members at the same place.
            others = [key for key in ANY if name not in ("y", "p") or not key.startswith("z")]
            others = [key for key in others if name != "e" or not key.startswith(("l", "z"))]
            out.append(pick.choice(others if is_other else KEYS[name]))
        elif name in ("new", "id", "from") and pick.random() < NEAR_CHANCE:
            out.append(self.near(name == "new"))
        elif name == "spot":
            out.extend(pick.choice(SPOTS).split())
        elif name == "many":
            out.extend(MANY[: 2 * pick.randrange(1, 100)])
        else:
            out.append(pick.choice(POOLS[name]))

    def near(self, is_new):
        """Returns an id near the newest one. Most new ids are higher than all earlier ones."""
        if is_new:
            self.newest += self.random.choice((0, 1, 1))
        return f"{max(1, self.newest - (0 if is_new else self.random.randrange(12)))}-{self.random.randrange(3)}"

    def mutate(self, command):
        pick = self.random
        at = pick.randrange(1, len(command) + 1)
        how = pick.random()
        if how < 0.35 and at < len(command):
            del command[at]
        elif how < 0.7:
            words = [pick.choice(ODD), pick.choice(SMALL), "NX", "COUNT", "WITHSCORES", "s1", "LIMIT"]
            command.insert(at, pick.choice(words))
        elif at < len(command):
            command[at] = pick.choice(ODD + SMALL)


# Maximum number of characters in the name of a topic, and so of a stream.
NAME_MAX = 249


def is_int(text):
    return re.fullmatch(r"-?\d+", text) is not None


def is_unsorted(command):
    """Returns `True` for a SORT of an ordered type by a pattern without `*`, which keeps or reverses the order."""
    words = [word.upper() for word in command]
    by = [command[at + 1] for at in range(len(command) - 1) if words[at] == "BY"]
    return len(command) > 1 and command[1][:1] in ("l", "z") and bool(by) and all("*" not in each for each in by)


def expiry_is_certain(text, least):
    """Returns `True` if a time is invalid, expires immediately, or exceeds the duration of any run."""
    return not is_int(text) or int(text) <= 0 or int(text) >= least


def does_not_wait(text):
    """Returns `True` if a timeout is short or invalid. Numbers such as 0x10 are valid and too long; -0 is infinite."""
    return text in ("0.001", "abc", "") or (text.startswith("-") and text != "-0")


def is_certain(command):
    name, *args = command
    name, options = name.upper(), [arg.upper() for arg in args]
    after = lambda word: [args[at + 1] for at in range(len(args) - 1) if options[at] == word]
    if name in ("EXPIRE", "SETEX") and len(args) > 1:
        return expiry_is_certain(args[1], 100_000) and not {"GT", "LT"} & set(options)
    if name in ("PEXPIRE", "PSETEX") and len(args) > 1:
        return expiry_is_certain(args[1], 100_000_000) and not {"GT", "LT"} & set(options)
    if name in ("HSCAN", "SSCAN", "ZSCAN"):
        # The server decides how many elements one reply has.
        return all(not is_int(arg) or int(arg) <= 0 or int(arg) >= 1000 for arg in after("COUNT"))
    if name == "ZADD" and args and args[0] in KEYS["y"]:
        # A changed word may be another score.
        return len(args) % 2 == 1 and all(score == "0" for score in args[1::2])
    is_past = lambda word, now: any(is_int(arg) and 0 < int(arg) < now for arg in after(word))
    if name in ("SET", "GETEX") and (is_past("EXAT", 1_000_000_000) or is_past("PXAT", 1_000_000_000_000)):
        # The time has passed: the server decides whether such a key is counted before a command reads it.
        return False
    if name in ("SET", "GETEX"):
        seconds = all(expiry_is_certain(arg, 100_000) for arg in after("EX"))
        return seconds and all(expiry_is_certain(arg, 100_000_000) for arg in after("PX"))
    if name in ("BLPOP", "BRPOP", "BZPOPMIN", "BZPOPMAX", "BLMOVE", "BRPOPLPUSH"):
        return not args or does_not_wait(args[-1])
    if name in ("BLMPOP", "BZMPOP"):
        return not args or does_not_wait(args[0])
    if name in ("XREAD", "XREADGROUP"):
        return all(arg == "1" or not is_int(arg) or int(arg) < 0 for arg in after("BLOCK"))
    if name in ("XCLAIM", "XAUTOCLAIM") and len(args) > 3:
        return args[3] in POOLS["idle"] or not is_int(args[3])
    if name == "XPENDING":
        return all(arg in ("0", "1000000000") or not is_int(arg) for arg in after("IDLE"))
    if name == "SPOP":
        return len(args) > 1 and (len(args) > 2 or args[1] == "1000" or not is_int(args[1]) or int(args[1]) <= 0)
    if name == "SORT" and "BY" in options:
        # Any order of keys with equal or without weights is valid. Without sorting, the order is defined.
        return is_unsorted(command) or "STORE" not in options and "LIMIT" not in options
    if name == "BITFIELD" and "SAT" in options:
        return not any(is_int(arg) and int(arg) < -(2**62) for arg in args)
    if name in ("XADD", "XGROUP", "CONFIG"):
        return all(len(arg) < NAME_MAX for arg in args[:2])
    return True
