-- For the Prometheus exporter of Redis (prometheus-redis-exporter -script dlock.lua), which runs this on the server at
-- each scrape, by EVAL or EVAL_RO. It wants names and values in turn, all of them strings, and makes of each pair
--
--     redis_script_values{key="dlock_locks"} 3
--
-- (later versions with a label `filename` next to `key`). The pairs are
--
--     dlock_…                         each field of INFO dlock, under its own name
--     maxclients                      how many connections the server takes
--     dlock_top_waits:<db>:<lock>     of the ten locks that were waited for most: how often,
--     dlock_top_wait_ms:<db>:<lock>   and how long altogether
--     dlock_top_queued:<db>:<lock>    how many wait now,
--     dlock_top_first_waited_ms:<db>:<lock>  and the first of them for how long
--     dlock_top_permits:<db>:<lock>   of the same locks, if they are held: how many permits the holders have,
--     dlock_top_limit:<db>:<lock>     of how many. 0: there is no bound
--
-- On a server without the module there are none. The exporter's user needs +eval +info +dlock.top +dlock.info +select,
-- and read access to the locks that may be named (%R~*).

local MOST_LOCKS = '10'
local LONGEST_NAME = 100

local result = {}

local function add(name, value)
    table.insert(result, name)
    -- Not tostring: it would round what has more than 14 digits.
    table.insert(result, string.format('%.0f', value))
end

-- A label is text, a key any bytes: what is not printable is written as in a URL.
local function shown(key)
    local function escape(byte)
        return string.format('%%%02x', string.byte(byte))
    end
    return (string.gsub(string.sub(key, 1, LONGEST_NAME), '[^!-$&-~]', escape))
end

-- Gives the fields of a reply of names and values.
local function named(reply)
    local fields = {}
    for i = 1, #reply, 2 do
        fields[reply[i]] = reply[i + 1]
    end
    return fields
end

-- Gives the fields of DLOCK.INFO, or nothing if nobody holds the lock, or the user may not see it.
local function fields_of(key, database)
    local selected = redis.pcall('SELECT', database)
    local reply = not selected.err and redis.pcall('DLOCK.INFO', key, 'COUNT', '1')
    if not reply or reply.err then
        return {}
    end
    return named(reply)
end

for name, value in string.gmatch(redis.call('INFO', 'dlock'), '(dlock_[%w_]+):(%d+)\r\n') do
    add(name, value)
end

-- The exporter itself tells it only to who may run CONFIG.
local most = #result > 0 and string.match(redis.call('INFO', 'clients'), 'maxclients:(%d+)')
if most then
    add('maxclients', most)
end

-- Without the module, or without the permission, there is no such command.
local top = #result > 0 and redis.pcall('DLOCK.TOP', 'COUNT', MOST_LOCKS)
if top and not top.err then
    for _, reply in ipairs(top) do
        local row = named(reply)
        local lock = string.format('%d:%s', row.db, shown(row.key))
        add('dlock_top_waits:' .. lock, row.waits)
        add('dlock_top_wait_ms:' .. lock, row['wait-ms'])
        add('dlock_top_queued:' .. lock, row.queued)
        -- A null is false here.
        add('dlock_top_first_waited_ms:' .. lock, row['first-waited-ms'] or 0)
        local fields = fields_of(row.key, row.db)
        if fields.held and fields.held > 0 then
            add('dlock_top_permits:' .. lock, fields.permits)
            add('dlock_top_limit:' .. lock, fields.limit)
        end
    end
end

return result
