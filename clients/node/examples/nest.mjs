// A program of NestJS that locks. ../test/library.test.mjs runs it with DLOCK_SINGLE=host:port.
import 'reflect-metadata';

import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { Redis } from 'ioredis';

import { Locks } from 'dlock-redis';

const url = `redis://${process.env.DLOCK_SINGLE}`;
class ManagedLocks extends Locks {
  onApplicationShutdown() { return this.close(); }
}
const provider = { provide: Locks, useFactory: () => new ManagedLocks(new Redis(url, { lazyConnect: true })) };
class App {}
Module({ providers: [provider] })(App);

const app = await NestFactory.createApplicationContext(App, { logger: false });
const locks = app.get(Locks);
console.log(await locks.using('{nest}lock', (hold) => hold.guard('SET', '{nest}left', 41)));
await app.close();
await locks.lock('{nest}lock').catch((error) => console.log(error.name));
