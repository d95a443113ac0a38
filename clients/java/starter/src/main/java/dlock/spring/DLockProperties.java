// SPDX-License-Identifier: MIT
package dlock.spring;

import java.time.Duration;
import org.springframework.boot.context.properties.ConfigurationProperties;

/**
 * The properties {@code dlock.…}.
 *
 * @param url where the server is: {@code redis://}, with TLS {@code rediss://}, by Sentinel {@code redis-sentinel://…#name}; with user,
 *     password and database as Lettuce reads them
 * @param clustered whether the URL is that of a node of a cluster
 * @param prefix what the names of the LockRegistry's locks begin with; by default nothing
 * @param lease how long a lock lasts after this program dies or loses the server
 * @param hangTimeout how long a program that hangs keeps its locks
 * @param replyTimeout how long a connect or a reply may take
 * @param clockMargin how long before its end a lease is believed to have ended
 */
@ConfigurationProperties("dlock")
public record DLockProperties(
        String url, boolean clustered, String prefix, Duration lease, Duration hangTimeout,
        Duration replyTimeout, Duration clockMargin) {}
