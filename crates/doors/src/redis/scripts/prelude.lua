-- The world of scripts, as in Redis (src/script_lua.c, src/eval.c): globals and libraries cannot be changed, and what
-- does not exist cannot be read. Receives functions of the host, and returns those that the host calls.
local host = ...

local error, pcall, rawget, rawset, select, setmetatable, tostring, type, unpack =
  error, pcall, rawget, rawset, select, setmetatable, tostring, type, unpack
local setfenv, getmetatable, loadstring, xpcall, concat, next = setfenv, getmetatable, loadstring, xpcall, table.concat, next
local byte = string.byte

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
  "assert", "collectgarbage", "error", "gcinfo", "getfenv", "getmetatable", "ipairs", "next", "rawequal", "rawget",
  "select", "tonumber", "tostring", "type", "unpack", "_VERSION",
} do
  globals[name] = _G[name]
end
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

local pairs = pairs
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

-- As luaRedisPcall of Redis: an error of a command is its text, as in older versions.
local function caught(is_done, ...)
  if is_done then
    return true, ...
  end
  local failure = ...
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

function globals.xpcall(of, handler)
  return xpcall(of, function(failure)
    if type(failure) == "userdata" then
      failure = opened(failure)
    end
    return handler(failure)
  end)
end

-- `true` once a script has replaced an environment, which must not be that of its next run.
local has_replaced = false

function globals.setfenv(of, with)
  if of == 0 then
    error("the environment of the server cannot be replaced", 2)
  end
  has_replaced = true
  return setfenv(of, with)
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
local insert = table.insert
local tables = {}
for name, of in next, table do
  tables[name] = of
end
function tables.insert(of, ...)
  if protected[of] then
    error(READONLY, 0)
  end
  return insert(of, ...)
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
  if not is_done and type((...)) == "userdata" then
    return false, opened((...))
  end
  return is_done, ...
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

local where = host.where
local function explain(failure)
  if type(failure) == "userdata" then
    failure = opened(failure)
  end
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

return environment, run, run_with
