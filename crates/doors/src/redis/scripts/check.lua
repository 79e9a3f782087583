-- Reads data with a library, writes what was read, and reads that again. The first writing may lose what the format does
-- not have, such as digits of numbers; from then on nothing may change. For fuzzing.
local cjson, cmsgpack, struct, library, format, data = ...

-- Returns true if two values are equal. Keys that are tables are not compared.
local function is_equal(a, b)
    if type(a) ~= type(b) then
        return false
    end
    if type(a) ~= "table" then
        return a == b or (a ~= a and b ~= b)
    end
    for key, value in pairs(a) do
        if type(key) ~= "table" and not is_equal(value, b[key]) then
            return false
        end
    end
    for key in pairs(b) do
        if type(key) ~= "table" and a[key] == nil then
            return false
        end
    end
    return true
end

local function all(ok, ...)
    return ok, { ... }, select("#", ...)
end

local function read(text)
    if library == 0 then
        return all(pcall(cjson.decode, text))
    elseif library == 1 then
        return all(pcall(cmsgpack.unpack, text))
    end
    local ok, values, count = all(pcall(struct.unpack, format, text))
    -- The last value is the position after the data.
    return ok, values, ok and count - 1 or 0
end

local function write(values, count)
    if library == 0 then
        return pcall(cjson.encode, values[1])
    elseif library == 1 then
        return pcall(cmsgpack.pack, unpack(values, 1, count))
    end
    return pcall(struct.pack, format, unpack(values, 1, count))
end

if library == 2 then
    pcall(struct.size, format)
end
local ok, values, count = read(data)
if not ok then
    return false
end
local ok, once = write(values, count)
if not ok then
    return false
end
local ok, first, count = read(once)
assert(ok, first[1])
local ok, twice = write(first, count)
assert(ok, twice)
local ok, second, again = read(twice)
assert(ok, second[1])
assert(count == again, "as many values")
for at = 1, count do
    assert(is_equal(first[at], second[at]), "equal values")
end
return true
