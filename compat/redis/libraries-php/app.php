<?php
// A program that uses Laravel's queue, cache and limiters with phpredis, without the rest of the framework.
// `app.php` runs a worker. The address is in the variable COMPAT_ADDRESS.

use Illuminate\Bus\Dispatcher as BusDispatcher;
use Illuminate\Cache\RedisStore;
use Illuminate\Cache\Repository;
use Illuminate\Container\Container;
use Illuminate\Contracts\Bus\Dispatcher as BusContract;
use Illuminate\Contracts\Container\Container as ContainerContract;
use Illuminate\Contracts\Debug\ExceptionHandler;
use Illuminate\Contracts\Events\Dispatcher as EventsContract;
use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Events\Dispatcher;
use Illuminate\Queue\Capsule\Manager as Queue;
use Illuminate\Queue\Events\JobFailed;
use Illuminate\Queue\InteractsWithQueue;
use Illuminate\Queue\Worker;
use Illuminate\Queue\WorkerOptions;
use Illuminate\Redis\RedisManager;

// Laravel 8, which Debian 12 has, is older than its PHP.
error_reporting(E_ALL & ~E_DEPRECATED);

foreach (['Bus', 'Cache', 'Events', 'Queue', 'Redis'] as $part) {
    require_once "Illuminate/$part/autoload.php";
}

/** Seconds after which a job of a worker that does not respond is given to another one. */
const RETRY_AFTER = 5;

function address(): array
{
    $address = getenv('COMPAT_ADDRESS');
    $colon = strrpos($address, ':');

    return ['host' => substr($address, 0, $colon), 'port' => (int) substr($address, $colon + 1), 'database' => 0];
}

function name(): string
{
    return getenv('COMPAT_NAME') ?: 'compat';
}

function container(): Container
{
    static $container = null;
    if ($container === null) {
        Container::setInstance($container = new Container);
        $redis = new RedisManager($container, 'phpredis', ['default' => address(), 'options' => []]);
        $container->instance('redis', $redis);
        $container->instance(ContainerContract::class, $container);
        $container->instance(BusContract::class, new BusDispatcher($container));
        $container->instance('events', $events = new Dispatcher($container));
        $container->instance(EventsContract::class, $events);
    }

    return $container;
}

function redis()
{
    return container()['redis']->connection();
}

function cache(): Repository
{
    return new Repository(new RedisStore(container()['redis'], name().':cache', 'default'));
}

function queue(): Queue
{
    $queue = new Queue(container());
    $queue->addConnection([
        'driver' => 'redis', 'connection' => 'default', 'queue' => name(), 'retry_after' => RETRY_AFTER, 'block_for' => 1,
    ]);

    return $queue;
}

/** Appends to the list that the scenario reads. */
function note(string $of, $value): void
{
    redis()->rpush(name().":done:$of", $value);
}

/** Returns what jobs appended. */
function done(string $of): array
{
    return redis()->lrange(name().":done:$of", 0, -1);
}

class Add implements ShouldQueue
{
    public function __construct(public int $one, public int $two)
    {
    }

    public function handle(): void
    {
        note('add', $this->one + $this->two);
    }
}

class Timed implements ShouldQueue
{
    public function handle(): void
    {
        note('timed', microtime(true));
    }
}

class Retried implements ShouldQueue
{
    use InteractsWithQueue;

    public $tries = 3;

    public function handle(): void
    {
        if ($this->attempts() < 3) {
            throw new RuntimeException('as it should');
        }
        note('retried', $this->attempts());
    }
}

class Mortal implements ShouldQueue
{
    public $tries = 2;

    public function handle(): void
    {
        throw new RuntimeException('as it should');
    }
}

/** Kills its worker at its first attempt. */
class Killer implements ShouldQueue
{
    use InteractsWithQueue;

    public $tries = 2;

    public function handle(): void
    {
        if ($this->attempts() === 1) {
            note('killed', getmypid());
            posix_kill(getmypid(), SIGKILL);
        }
        note('killer', $this->attempts());
    }
}

class Silent implements ExceptionHandler
{
    public function report(Throwable $e)
    {
        fwrite(STDERR, get_class($e).": {$e->getMessage()}\n");
    }

    public function shouldReport(Throwable $e)
    {
        return true;
    }

    public function render($request, Throwable $e)
    {
    }

    public function renderForConsole($output, Throwable $e)
    {
    }
}

function work(): int
{
    $events = container()['events'];
    $events->listen(JobFailed::class, function (JobFailed $event) {
        note('failed', $event->job->resolveName().': '.$event->exception->getMessage());
    });
    $worker = new Worker(queue()->getQueueManager(), $events, new Silent, fn () => false);
    $options = new WorkerOptions(sleep: 0.05, maxTries: 1);

    return $worker->setCache(cache())->daemon('default', name(), $options);
}

if (realpath($_SERVER['SCRIPT_FILENAME']) === __FILE__) {
    exit(work());
}
