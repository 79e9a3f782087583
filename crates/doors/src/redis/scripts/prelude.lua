-- The world of scripts, as in Redis (src/script_lua.c, src/eval.c): globals and libraries cannot be changed, and what
-- does not exist cannot be read. Receives functions of the host, and returns those that the host calls.
local host = ...

local error, pcall, rawget, rawset, select, setmetatable, tonumber, tostring, type, unpack =
  error, pcall, rawget, rawset, select, setmetatable, tonumber, tostring, type, unpack
local getfenv, setfenv, getmetatable, loadstring, xpcall, next =
  getfenv, setfenv, getmetatable, loadstring, xpcall, next
local collectgarbage, pairs, concat = collectgarbage, pairs, table.concat
local string, table, math, coroutine = string, table, math, coroutine
local byte, sub, find, match, gmatch, gsub, rep =
  string.byte, string.sub, string.find, string.match, string.gmatch, string.gsub, string.rep
local check, where = host.check, host.where

-- What no script may have is nowhere, and the functions of this file have an empty environment: a script that got hold
-- of one would find nothing there.
local world = _G
for _, name in next, { "dofile", "load", "loadfile", "module", "newproxy", "print", "require" } do
  world[name] = nil
end
string.dump = nil
local empty = {}
setfenv(1, empty)

-- Protected tables: each is an empty table in front of the real one.
local protected = setmetatable({}, { __mode = "k" })
local READONLY = "Attempt to modify a readonly table"

local function refuse_change()
  error(READONLY, 2)
end

local function refuse_name(_, name)
  error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
end

local function protect(real)
  local front = setmetatable({}, { __index = real, __newindex = refuse_change, __metatable = false })
  protected[front] = real
  return front
end

-- Returns what an error of the host stands for: a table as of commands, or a text.
local opened = host.opened

-- Globals of scripts. Their names are those that Redis 7.0 allows.
local globals = setmetatable({}, { __index = refuse_name })

for _, name in next, {
  "assert", "error", "gcinfo", "getmetatable", "ipairs", "next", "rawequal", "select", "tonumber", "tostring", "type",
  "unpack", "_VERSION",
} do
  globals[name] = world[name]
end
world = nil
globals.collectgarbage = function(what)
  if what == nil or what == "count" then
    return collectgarbage(what or "count")
  end
  return 0
end

local environment = protect(globals)
globals._G = environment

function globals.rawset(of, key, value)
  if protected[of] then
    error(READONLY, 0)
  end
  return rawset(of, key, value)
end

function globals.rawget(of, key)
  return rawget(protected[of] or of, key)
end

function globals.setmetatable(of, metatable)
  if protected[of] then
    error(READONLY, 0)
  end
  return setmetatable(of, metatable)
end

function globals.pairs(of)
  local real = protected[of]
  if real then
    of = {}
    for key, value in next, real do
      of[key] = value
    end
  end
  return pairs(of)
end

-- Errors of functions in C that this file calls for a script name the line of the script.
local function placed(failure)
  if type(failure) ~= "string" or sub(failure, 1, 8) ~= "prelude:" then
    return failure
  end
  local _, last = find(failure, ": ", 9, true)
  if not last then
    return failure
  end
  local source, line = where()
  local place = ""
  if source and line and byte(source, 1) == 64 then
    place = sub(source, 2) .. ":" .. line .. ": "
  end
  return place .. sub(failure, last + 1)
end

-- As luaRedisPcall of Redis: an error of a command is its text, as in older versions. The error of a script that is
-- killed is not caught: `check` raises it again.
local function caught(is_done, ...)
  if is_done then
    return true, ...
  end
  check()
  local failure = placed((...))
  if type(failure) == "userdata" then
    failure = opened(failure)
  end
  if type(failure) == "table" then
    local text = failure.err
    if type(text) == "string" or type(text) == "number" then
      failure = text
    end
  end
  return false, failure
end

function globals.pcall(...)
  return caught(pcall(...))
end

local function handled(is_done, ...)
  if not is_done then
    check()
  end
  return is_done, ...
end

function globals.xpcall(of, handler)
  return handled(xpcall(of, function(failure)
    if type(failure) == "userdata" then
      failure = opened(failure)
    end
    return handler(placed(failure))
  end))
end

-- `true` once a script has replaced an environment, which must not be that of its next run.
local has_replaced = false

-- Returns what the functions of Lua take for a function or a level of the stack, which are called with `pcall`.
local function place_of(of, name)
  if type(of) == "function" then
    return of
  end
  local level = of == nil and 1 or tonumber(of)
  if not level then
    error("bad argument #1 to '" .. name .. "' (number expected, got " .. type(of) .. ")", 3)
  elseif not (level >= 0 and level < 1e6) then
    error("bad argument #1 to '" .. name .. "' (invalid level)", 3)
  end
  -- Above `pcall` and the function that calls it.
  return level == 0 and 0 or level + 2
end

-- The environment of functions that are not a script's is that of scripts.
function globals.getfenv(of)
  local place = place_of(of, "getfenv")
  local is_found, found = pcall(getfenv, place)
  if not is_found and place ~= 3 then
    error("bad argument #1 to 'getfenv' (invalid level)", 2)
  elseif not is_found or found == empty then
    -- Without a level of its own, the script has called this as its last act.
    found = environment
  end
  return found
end

function globals.setfenv(of, with)
  local place = place_of(of, "setfenv")
  if type(with) ~= "table" then
    error("bad argument #2 to 'setfenv' (table expected, got " .. type(with) .. ")", 2)
  elseif place == 0 then
    error("the environment of the server cannot be replaced", 2)
  end
  local is_found, found = pcall(getfenv, place)
  if not is_found or found == empty then
    error("'setfenv' cannot change environment of given object", 2)
  end
  has_replaced = true
  local is_done, result = pcall(setfenv, place, with)
  if not is_done then
    error("'setfenv' cannot change environment of given object", 2)
  end
  return result
end

local function loaded(text, name)
  if byte(text, 1) == 27 then
    return nil, "compiled code cannot be loaded"
  end
  local chunk, why = loadstring(text, name)
  if chunk then
    setfenv(chunk, environment)
  end
  return chunk, why
end

function globals.loadstring(text, name)
  return loaded(tostring(text), name or tostring(text))
end

function globals.load(reader, name)
  local pieces = {}
  while true do
    local piece = reader()
    if piece == nil or piece == "" then
      break
    end
    pieces[#pieces + 1] = piece
  end
  return loaded(concat(pieces), name or "=(load)")
end

-- Libraries.
local function library(name, real)
  globals[name] = protect(real)
end

local strings = {}
for name, of in next, string do
  strings[name] = of
end

-- Lua's own functions run in C until they have searched everything, and nothing ends them. They are faster for short
-- searches, so they do those that cannot take many steps. All others are left to the host, which checks while it
-- searches whether the script must end.
local searches, STEPS_MAX = host.strings, host.native_steps_max
local find_by_host, match_by_host, replace_by_host, texts_of_gmatch, texts_of_gsub, next_match, exponent_of =
  searches.find, searches.match, searches.replace, searches.gmatch, searches.gsub, searches.next, searches.exponent
-- Steps of Lua's functions between two checks of whether the script must end, patterns that a state knows the exponents
-- of, their maximum length, and pieces of a text that are joined together.
local CHECKED_STEPS, KNOWN_MAX, KNOWN_BYTES, PIECES_MAX = 16 * STEPS_MAX, 256, 256, 4096
local exponents, known, steps_taken = {}, 0, 0

-- Returns `true` if a search takes few steps: at most the length of the text to the power of `exponent`, for each byte
-- of the pattern.
local function is_short(text, pattern, exponent)
  local steps = (#text + 1) ^ exponent * (#pattern + 1)
  if steps > STEPS_MAX then
    return false
  end
  steps_taken = steps_taken + steps
  if steps_taken > CHECKED_STEPS then
    steps_taken = 0
    check()
  end
  return true
end

-- Returns `true` if a search for a pattern takes few steps.
local function is_short_match(text, pattern)
  if type(text) ~= "string" or type(pattern) ~= "string" or #pattern > KNOWN_BYTES then
    return false
  end
  local exponent = exponents[pattern]
  if not exponent then
    if known == KNOWN_MAX then
      exponents, known = {}, 0
    end
    exponent = exponent_of(pattern)
    exponents[pattern], known = exponent, known + 1
  end
  return is_short(text, pattern, exponent)
end

function strings.find(...)
  local text, pattern, from, is_plain = ...
  local is_few
  if is_plain then
    is_few = type(text) == "string" and type(pattern) == "string" and is_short(text, pattern, 1)
  else
    is_few = is_short_match(text, pattern)
  end
  if is_few then
    return find(text, pattern, from, is_plain)
  end
  return find_by_host(...)
end

function strings.match(...)
  local text, pattern, from = ...
  if is_short_match(text, pattern) then
    return match(text, pattern, from)
  end
  return match_by_host(...)
end

function strings.gmatch(...)
  local text, pattern = ...
  -- It has no anchor.
  if is_short_match(text, pattern) and byte(pattern, 1) ~= 94 then
    return gmatch(text, pattern)
  end
  text, pattern = texts_of_gmatch(...)
  local at = 0
  local function continued(first, last, ...)
    if first then
      at = last < first and first or last
    end
    return ...
  end
  return function()
    return continued(next_match(text, pattern, at))
  end
end
-- The name of older versions.
strings.gfind = strings.gmatch

function strings.gsub(...)
  local text, pattern, with, count = ...
  if is_short_match(text, pattern) then
    return gsub(text, pattern, with, count)
  end
  local of = type(with)
  if of ~= "function" and of ~= "table" then
    return replace_by_host(...)
  end
  text, pattern, count = texts_of_gsub(...)
  local first, last
  local function replacement(from, to, ...)
    first, last = from, to
    if not from then
      return
    elseif of == "function" then
      return with(...)
    end
    return with[(...)]
  end
  local is_anchored = byte(pattern, 1) == 94
  local at, done, joined, pieces, size = 0, 0, {}, {}, 0
  while done < count do
    local piece = replacement(next_match(text, pattern, at, of == "table", true))
    if not first then
      break
    end
    if not piece then
      piece = sub(text, first, last)
    elseif type(piece) ~= "string" and type(piece) ~= "number" then
      error("invalid replacement value (a " .. type(piece) .. ")", 2)
    end
    done = done + 1
    pieces[size + 1], pieces[size + 2] = sub(text, at + 1, first - 1), piece
    size, at = size + 2, last
    if last < first then
      -- An empty match: the byte after it is kept.
      size, at = size + 1, first
      pieces[size] = sub(text, first, first)
    end
    if size >= PIECES_MAX then
      joined[#joined + 1] = concat(pieces, "", 1, size)
      size = 0
    end
    if is_anchored or at > #text then
      break
    end
  end
  joined[#joined + 1] = concat(pieces, "", 1, size)
  return concat(joined) .. sub(text, at + 1), done
end

function strings.rep(text, count)
  -- Many repetitions of nothing take long.
  if text == "" and tonumber(count) then
    return ""
  end
  return rep(text, count)
end

local insert = table.insert
local tables = {}
for name, of in next, table do
  tables[name] = of
end
function tables.insert(of, ...)
  if protected[of] then
    error(READONLY, 0)
  end
  if select("#", ...) == 2 then
    -- The table is moved up from the position on, also where it has nothing.
    local at = tonumber((...))
    if at and not (at >= 0 and at <= 2147483647) then
      error("bad argument #2 to 'insert' (position out of bounds)", 2)
    end
  end
  return insert(of, ...)
end
-- A table can be such that sorting it takes as many comparisons as the square of its length, in C. With a comparison in
-- Lua, the hook that ends scripts runs.
local SORTED_MAX, sort = 4096, table.sort
local function is_less(one, other)
  return one < other
end
function tables.sort(of, is_before)
  if is_before == nil and type(of) == "table" and #of > SORTED_MAX then
    is_before = is_less
  end
  return sort(of, is_before)
end
local maths = {}
for name, of in next, math do
  maths[name] = of
end
maths.random = host.random
maths.randomseed = host.randomseed
local coroutines = {}
for name, of in next, coroutine do
  coroutines[name] = of
end
local resume = coroutine.resume
local function resumed(is_done, ...)
  if is_done then
    return true, ...
  end
  check()
  local failure = placed((...))
  if type(failure) == "userdata" then
    failure = opened(failure)
  end
  return false, failure
end
function coroutines.resume(...)
  return resumed(resume(...))
end
library("string", strings)
library("table", tables)
library("math", maths)
library("coroutine", coroutines)
for _, name in next, { "cjson", "cmsgpack", "struct", "bit" } do
  library(name, host[name])
end

-- Methods of strings are found in the library, which getmetatable must not lead to.
local of_strings = getmetatable("")
of_strings.__index = strings
of_strings.__metatable = protect({ __index = globals.string })

-- The table `redis`. Each run sets its function `call`, which raises errors as functions in C do, so that they name the
-- line of the script. With the mark, which no script has, it does something else and returns errors.
local redis = host.redis
local mark, PCALL, SET_RESP, CHECK = host.mark, 1, 2, 3

function redis.pcall(...)
  return (redis.call(mark, PCALL, ...))
end

local function plain(result, is_error)
  if is_error then
    error(result, 0)
  end
  return result
end

function redis.setresp(...)
  return plain(redis.call(mark, SET_RESP, ...))
end

function redis.acl_check_cmd(...)
  return plain(redis.call(mark, CHECK, ...))
end
-- Errors of these are returned, not raised.
redis.status_reply = function(...)
  if select("#", ...) ~= 1 or type((...)) ~= "string" then
    return { err = "ERR wrong number or type of arguments" }
  end
  return { ok = (...) }
end
redis.error_reply = function(...)
  if select("#", ...) ~= 1 or type((...)) ~= "string" then
    return { err = "ERR wrong number or type of arguments" }
  end
  return { err = host.error_text((...)) }
end
library("redis", redis)

local function explain(failure)
  if type(failure) == "userdata" then
    failure = opened(failure)
  end
  failure = placed(failure)
  if type(failure) ~= "table" then
    failure = { err = "ERR " .. tostring(failure) }
  end
  local source, line = where()
  if source and not protected[failure] then
    rawset(failure, "source", source)
    rawset(failure, "line", line)
  end
  return failure
end

local function halves(count, ...)
  local all = { ... }
  local rest, from = {}, count + 1
  for at = from, select("#", ...) do
    rest[at - count] = all[at]
    all[at] = nil
  end
  return all, rest
end

local function listed(count, ...)
  if count == 0 then
    return {}, { ... }
  elseif count == select("#", ...) then
    return { ... }, {}
  end
  return halves(count, ...)
end

-- Runs a script: `count` keys, then arguments.
local function run(call, script, count, ...)
  redis.call = call
  globals.KEYS, globals.ARGV = listed(count, ...)
  if has_replaced then
    setfenv(script, environment)
  end
  return xpcall(script, explain)
end

-- Runs a script with tables of keys and arguments, which may be of any size.
local function run_with(call, script, keys, args)
  redis.call = call
  globals.KEYS, globals.ARGV = keys, args
  if has_replaced then
    setfenv(script, environment)
  end
  return xpcall(script, explain)
end

-- Functions of libraries. The world of a library that is loaded has only a table `redis`, with which it registers
-- functions (`luaEngineInitEngine` in src/function_lua.c). When they are called, they have the world of scripts.
local registered, names
local lower = string.lower

local function fail(message)
  error({ err = "ERR " .. message }, 0)
end

-- As `lua_isstring`: a number is one, too.
local function text_of(value)
  if type(value) == "string" or type(value) == "number" then
    return tostring(value)
  end
end

local function flags_of(given)
  local flags, seen, at = 0, {}, 1
  while given[at] ~= nil do
    local name = text_of(given[at])
    local bit = name and host.flags[lower(name)]
    if not bit then
      fail("unknown flag given")
    end
    if not seen[bit] then
      seen[bit] = true
      flags = flags + bit
    end
    at = at + 1
  end
  return flags
end

local function named(given)
  if type(given) ~= "table" then
    fail("calling redis.register_function with a single argument is only applicable to Lua table (representing named "
      .. "arguments).")
  end
  local name, callback, description
  local flags = 0
  for key, value in next, given do
    key = text_of(key)
    if not key then
      fail("named argument key given to redis.register_function is not a string")
    end
    key = lower(key)
    if key == "function_name" then
      name = text_of(value) or fail("function_name argument given to redis.register_function must be a string")
    elseif key == "description" then
      description = text_of(value) or fail("description argument given to redis.register_function must be a string")
    elseif key == "callback" then
      if type(value) ~= "function" then
        fail("callback argument given to redis.register_function must be a function")
      end
      callback = value
    elseif key == "flags" then
      if type(value) ~= "table" then
        fail("flags argument to redis.register_function must be a table representing function flags")
      end
      flags = flags_of(value)
    else
      fail("unknown argument given to redis.register_function")
    end
  end
  if not name then
    fail("redis.register_function must get a function name argument")
  elseif not callback then
    fail("redis.register_function must get a callback argument")
  end
  return name, flags, callback, description
end

local function positional(name, callback)
  name = text_of(name) or fail("first argument to redis.register_function must be a string")
  if type(callback) ~= "function" then
    fail("second argument to redis.register_function must be a function")
  end
  return name, 0, callback
end

local function register(name, flags, callback, description)
  if name == "" or find(name, "[^%w_]") then
    fail("Library names can only contain letters, numbers, or underscores(_) and must be at least one character long")
  elseif names[name] then
    fail("Function already exists in the library")
  end
  names[name] = true
  registered[#registered + 1] = { name, flags, callback, description }
end

local function register_function(...)
  if not registered then
    fail("redis.register_function can only be called on FUNCTION LOAD command")
  end
  local count = select("#", ...)
  if count == 1 then
    register(named(...))
  elseif count == 2 then
    register(positional(...))
  else
    fail("wrong number of arguments to redis.register_function")
  end
end

local of_loading = { register_function = register_function }
for name, value in next, redis do
  if name == "log" or find(name, "^LOG_") or find(name, "^REDIS_VERSION") then
    of_loading[name] = value
  end
end
local no_others = { __index = refuse_name }
local loading = protect(setmetatable({ redis = protect(setmetatable(of_loading, no_others)) }, no_others))
local world_of_functions = { __index = globals, __newindex = refuse_change, __metatable = false }
local functions = setmetatable({}, world_of_functions)
protected[functions] = globals

local loader = {}

function loader.begin(chunk)
  registered, names = {}, {}
  world_of_functions.__index = loading
  setfenv(chunk, functions)
end

function loader.run(chunk)
  return xpcall(chunk, explain)
end

-- Called also if the library has failed.
function loader.end_load()
  local all = registered
  registered, names = nil, nil
  world_of_functions.__index = globals
  return all
end

function loader.call(call, of, keys, args)
  redis.call = call
  globals.KEYS, globals.ARGV = nil, nil
  return xpcall(function()
    return of(keys, args)
  end, explain)
end

return environment, run, run_with, loader
