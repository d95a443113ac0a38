// SPDX-License-Identifier: MIT
package dlock.spring;

import java.time.Duration;
import org.springframework.boot.context.properties.ConfigurationProperties;

/**
 * What can be set.
 *
 * @param url where the server is: {@code redis://}, with TLS {@code rediss://}, by Sentinel {@code redis-sentinel://}; with user,
 *     password and database as Lettuce reads them
 * @param clustered whether the URL is that of a node of a cluster
 * @param prefix what the names of the LockRegistry's locks begin with
 * @param lease what a lock has left when this program dies or loses the server
 * @param auto how long a program that hangs keeps its locks
 * @param claim how long a place in a queue is kept while the connection is away
 * @param bound how long a connect or a reply may take
 */
@ConfigurationProperties("dlock")
public record DLockProperties(
        String url, boolean clustered, String prefix, Duration lease, Duration auto, Duration claim, Duration bound) {}
