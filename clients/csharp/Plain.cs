// Plain commands from C#, by StackExchange.Redis: what docs/clients.md shows. Nothing here has been run: neither the library
// nor its package is part of what the tests can install.
using System;
using System.Threading.Tasks;
using StackExchange.Redis;

static class Plain
{
    static async Task Sell(IDatabase redis, string stock)
    {
        // All tasks share this connection, so nothing may BLOCK on it. A ticket keeps the place while it asks again.
        var owner = Guid.NewGuid().ToString();
        RedisResult grant;
        while ((grant = await redis.ExecuteAsync("DLOCK.FAIRACQUIRE", stock, owner, 3_000, "CLAIM", 5_000, "HOLDS", 1)).IsNull)
        {
            await Task.Delay(50);
        }
        var token = (long)((RedisResult[])grant)[0];
        await redis.ExecuteAsync("DLOCK.RENEW", stock, owner, 10_000, "TOKEN", token, "AUTO", 60_000);
        await redis.ExecuteAsync("DLOCK.GUARD", stock, token, "SET", stock + ":left", 41);
        await redis.ExecuteAsync("DLOCK.RELEASE", stock, owner, "TOKEN", token);
    }
}
