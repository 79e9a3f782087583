<?php
// Laravel's queue, cache and limiters, as their users write them: client.php HOST:PORT [SCENARIO..]

if ($argc < 2) {
    fwrite(STDERR, "usage: client.php HOST:PORT [SCENARIO..]\n");
    exit(2);
}
putenv("COMPAT_ADDRESS=$argv[1]");
putenv('COMPAT_NAME=lib-'.bin2hex(random_bytes(4)));

require __DIR__.'/app.php';

use Illuminate\Contracts\Cache\LockTimeoutException;
use Illuminate\Contracts\Redis\LimiterTimeoutException;
use Illuminate\Redis\Limiters\ConcurrencyLimiterBuilder;
use Illuminate\Redis\Limiters\DurationLimiter;
use Illuminate\Redis\Limiters\DurationLimiterBuilder;

const WAIT_SECONDS = 60;
const LOCKERS = 4;
const TURNS = 25;

function same($found, $expected, string $what = 'the value'): void
{
    if ($found !== $expected) {
        throw new Exception("$what is ".json_encode($found).', not '.json_encode($expected));
    }
}

function until(string $what, callable $holds)
{
    for ($limit = microtime(true) + WAIT_SECONDS; microtime(true) < $limit; usleep(20_000)) {
        if ($found = $holds()) {
            return $found;
        }
    }
    throw new Exception('not within '.WAIT_SECONDS." s: $what");
}

/** Runs a function in other processes, and returns the number of those that succeeded. */
function parallel(int $count, callable $run): int
{
    $children = [];
    for ($at = 0; $at < $count; $at++) {
        $child = pcntl_fork();
        if ($child === 0) {
            // A process has its own connection.
            container()['redis']->purge();
            try {
                $run($at);
                posix_kill(getmypid(), SIGKILL);
            } catch (Throwable $e) {
                fwrite(STDERR, "$e\n");
                exit(1);
            }
        }
        $children[] = $child;
    }
    $succeeded = 0;
    foreach ($children as $child) {
        pcntl_waitpid($child, $status);
        $succeeded += pcntl_wifsignaled($status) ? 1 : 0;
    }

    return $succeeded;
}

/** Runs workers until the function ends. */
function workers(int $count, callable $run): void
{
    $running = [];
    for ($at = 0; $at < $count; $at++) {
        $running[] = proc_open([PHP_BINARY, __DIR__.'/app.php'], [1 => STDERR, 2 => STDERR], $pipes);
    }
    try {
        $run();
    } finally {
        array_map('proc_terminate', $running);
        array_map('proc_close', $running);
    }
}

function laravel_queue(): void
{
    $queue = queue()->getConnection();
    $sizes = fn () => [$queue->size(), redis()->llen('queues:'.name()), redis()->zcard('queues:'.name().':delayed')];
    $queue->push(new Timed);
    $queue->later(600, new Timed);
    same($sizes(), [2, 1, 1], 'the size of the queue, and of its parts');
    same($queue->clear(name()), 2, 'the number of deleted jobs');
    $queue->bulk(array_map(fn ($at) => new Add($at, $at), range(0, 29)));
    workers(2, function () use ($queue) {
        foreach (range(30, 59) as $at) {
            $queue->push(new Add($at, $at));
        }
        until('all jobs', fn () => count(done('add')) === 60);
        $results = array_map('intval', done('add'));
        sort($results);
        same($results, range(0, 118, 2), 'the results');

        $start = microtime(true);
        $queue->later(2, new Timed);
        until('the delayed job', fn () => done('timed'));
        // The library keeps the time of a delay in whole seconds.
        same((float) done('timed')[0] - $start >= 1, true, 'that the job was delayed');

        $queue->push(new Retried);
        $queue->push(new Mortal);
        until('the retried job', fn () => done('retried') === ['3']);
        until('the failed job', fn () => done('failed') === ['Mortal: as it should']);
        $queue->push(new Killer);
        until('the job of a killed worker', fn () => done('killer') === ['2']);
        same(count(done('killed')), 1, 'the number of killed workers');
        until('the deletion of the last job', fn () => $queue->size() === 0);
        same(count(done('timed')), 1, 'the number of executions');
    });
    same(redis()->exists('queues:'.name().':reserved'), 0, 'the presence of reserved jobs');
}

function laravel_cache(): void
{
    $cache = cache();
    $succeeded = parallel(LOCKERS, function () {
        $cache = cache();
        for ($turn = 0; $turn < TURNS; $turn++) {
            // Nothing but the lock keeps two processes from reading the same number.
            until('the lock', fn () => ($lock = $cache->lock('lock', 30))->get(function () use ($cache) {
                $cache->forever('number', (int) $cache->get('number', 0) + 1);
            }) !== false);
        }
    });
    same([$succeeded, (int) $cache->get('number')], [LOCKERS, LOCKERS * TURNS], 'the processes, and their number');
    $held = $cache->lock('held', 30);
    same([$held->get(), $cache->lock('held', 30)->get()], [true, false], 'a lock, and a second owner');
    same($cache->lock('held', 30)->release(), false, 'the release by another client');
    same($cache->restoreLock('held', $held->owner())->release(), true, 'the release by its owner');
    same($cache->lock('short', 1)->get(), true, 'a lock for a second');
    same($cache->lock('short', 1)->block(5, fn () => 'mine'), 'mine', 'the lock after it');
    $cache->lock('held', 30)->get();
    try {
        $cache->lock('held', 30)->block(0);
        throw new Exception('a held lock was acquired');
    } catch (LockTimeoutException) {
    }
    $cache->lock('held')->forceRelease();

    same([$cache->add('one', ['a' => 1], 60), $cache->add('one', 2, 60)], [true, false], 'additions');
    same($cache->get('one'), ['a' => 1], 'the object');
    same([$cache->put('count', 5, 60), $cache->increment('count', 3), $cache->decrement('count')], [true, 8, 7], 'counters');
    same($cache->remember('lazy', 60, fn () => 'made'), 'made', 'a value that is made');
    same($cache->putMany(['x' => 1, 'y' => 'two'], 60), true, 'several values');
    same($cache->many(['x', 'y', 'z']), ['x' => '1', 'y' => 'two', 'z' => null], 'several values');
    $cache->tags(['people', 'artists'])->put('Ada', 'x', 60);
    $cache->tags(['people'])->put('Bob', 'y', 60);
    same($cache->tags(['people', 'artists'])->get('Ada'), 'x', 'a value with tags');
    $cache->tags('artists')->flush();
    same($cache->tags(['people', 'artists'])->get('Ada'), null, 'a value with a flushed tag');
    same($cache->tags(['people'])->get('Bob'), 'y', 'a value with another tag');
    same([$cache->pull('one'), $cache->has('one')], [['a' => 1], false], 'a removed value');
}

function laravel_limiters(): void
{
    // Five in three seconds, from the first one on.
    $limiter = fn () => new DurationLimiter(redis(), name().':throttle', 5, 3);
    $allowed = array_map(fn () => $limiter()->acquire(), range(1, 8));
    same($allowed, [...array_fill(0, 5, true), false, false, false], 'the allowed calls');
    same($limiter()->tooManyAttempts(), true, 'that there were too many');
    until('the next period', fn () => ! $limiter()->tooManyAttempts());
    $throttle = fn () => (new DurationLimiterBuilder(redis(), name().':throttle'))->allow(1)->every(600)->block(0);
    same($throttle()->then(fn () => 'ran', fn () => 'refused'), 'ran', 'a call of the next period');
    same($throttle()->then(fn () => 'ran', fn () => 'refused'), 'refused', 'a second call');

    // At most two of four processes at a time.
    $succeeded = parallel(4, function () {
        $funnel = (new ConcurrencyLimiterBuilder(redis(), name().':funnel'))->limit(2)->releaseAfter(30)->block(30);
        $funnel->then(function () {
            note('running', redis()->incr(name().':running'));
            usleep(200_000);
            redis()->decr(name().':running');
        });
    });
    $most = array_map('intval', done('running'));
    sort($most);
    same([$succeeded, count($most), max($most) <= 2], [4, 4, true], 'the processes, their runs, and their limit');
    $full = fn () => (new ConcurrencyLimiterBuilder(redis(), name().':full'))->limit(1)->releaseAfter(1)->block(0);
    try {
        $full()->then(fn () => $full()->then(fn () => 0));
        throw new Exception('a full funnel was passed');
    } catch (LimiterTimeoutException) {
    }
}

const SCENARIOS = [
    'laravel_queue' => 'jobs, bulks, delays, retries, failed jobs, a killed worker',
    'laravel_cache' => 'locks under contention, foreign owners, counters, tags',
    'laravel_limiters' => 'limits of rates and of concurrency',
];

function run(string $scenario): bool
{
    $version = trim(shell_exec("dpkg-query -W -f '\${Version}' php-illuminate-queue"));
    echo "library $scenario ".preg_replace('/[+-].*/', '', $version).': '.SCENARIOS[$scenario]."\n";
    $start = microtime(true);
    try {
        $scenario();
        printf("ok %s (%.1f s)\n", $scenario, microtime(true) - $start);

        return true;
    } catch (Throwable $e) {
        if (getenv('COMPAT_TRACE')) {
            fwrite(STDERR, "$e\n");
        }
        $message = get_class($e).': '.preg_replace('/\s+/', ' ', $e->getMessage());
        echo "FAILED $scenario: ".substr($message, 0, 300)."\n";

        return false;
    } finally {
        foreach (redis()->keys('*'.name().'*') as $key) {
            redis()->del($key);
        }
    }
}

echo 'client libraries-php phpredis-'.phpversion('redis')."\n";
$wanted = array_slice($argv, 2) ?: array_keys(SCENARIOS);
if ($unknown = array_diff($wanted, array_keys(SCENARIOS))) {
    fwrite(STDERR, 'there is no scenario '.current($unknown).': choose from '.implode(' ', array_keys(SCENARIOS))."\n");
    exit(2);
}
exit(in_array(false, array_map('run', $wanted), true) ? 1 : 0);
