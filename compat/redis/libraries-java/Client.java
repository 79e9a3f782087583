import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.redisson.Redisson;
import org.redisson.api.RAtomicLong;
import org.redisson.api.RBlockingQueue;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RLock;
import org.redisson.api.RMapCache;
import org.redisson.api.RRateLimiter;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RScoredSortedSet;
import org.redisson.api.RSemaphore;
import org.redisson.api.RTopic;
import org.redisson.api.RateType;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/** Redisson as its users write it, with two clients: Client HOST:PORT [SCENARIO..] */
public final class Client {
    private static final int LOCKERS = 4;
    private static final int TURNS = 25;
    private static final Duration WAIT = Duration.ofSeconds(60);
    /** Milliseconds for which a lock without a time of its own is held, and extended until it is released. */
    private static final long WATCHDOG_MS = 2000;

    private static final Map<String, Scenario> SCENARIOS = new LinkedHashMap<>();
    private static final Map<String, String> WHAT = Map.of(
            "redisson_locks", "locks under contention, reentrance, leases, fair and read-write locks, semaphores",
            "redisson_objects", "queues, expiring maps, limits of rates, topics, atomic numbers, sorted sets");

    static {
        SCENARIOS.put("redisson_locks", Client::locks);
        SCENARIOS.put("redisson_objects", Client::objects);
    }

    private final String name = "lib-" + UUID.randomUUID().toString().substring(0, 8);
    private final RedissonClient one;
    private final RedissonClient other;

    private interface Scenario {
        void run(Client client) throws Exception;
    }

    private Client(String address) {
        one = connect(address);
        other = connect(address);
    }

    private static RedissonClient connect(String address) {
        Config config = new Config();
        config.setLockWatchdogTimeout(WATCHDOG_MS);
        config.setCodec(StringCodec.INSTANCE);
        config.useSingleServer().setAddress("redis://" + address).setConnectionMinimumIdleSize(2);
        return Redisson.create(config);
    }

    public static void main(String[] args) {
        if (args.length == 0) {
            System.err.println("usage: Client HOST:PORT [SCENARIO..]");
            System.exit(2);
        }
        System.out.println("client libraries-java java-" + System.getProperty("java.version"));
        List<String> wanted = new ArrayList<>(args.length > 1 ? List.of(args).subList(1, args.length) : SCENARIOS.keySet());
        boolean isFine = true;
        for (String scenario : wanted) {
            if (!SCENARIOS.containsKey(scenario)) {
                System.err.println("there is no scenario " + scenario + ": choose from " + SCENARIOS.keySet());
                System.exit(2);
            }
            isFine &= run(args[0], scenario);
        }
        System.exit(isFine ? 0 : 1);
    }

    private static boolean run(String address, String scenario) {
        String jar = Redisson.class.getProtectionDomain().getCodeSource().getLocation().getPath();
        System.out.println("library " + scenario + " " + jar.replaceAll(".*redisson-|\\.jar", "") + ": " + WHAT.get(scenario));
        long begin = System.nanoTime();
        Client client = new Client(address);
        try {
            SCENARIOS.get(scenario).run(client);
            System.out.printf("ok %s (%.1f s)%n", scenario, (System.nanoTime() - begin) / 1e9);
            return true;
        } catch (Throwable e) {
            if (System.getenv("COMPAT_TRACE") != null) {
                e.printStackTrace();
            }
            String message = e.toString().replaceAll("\\s+", " ");
            System.out.println("FAILED " + scenario + ": " + message.substring(0, Math.min(300, message.length())));
            return false;
        } finally {
            client.one.getKeys().deleteByPattern("*" + client.name + "*");
            client.one.shutdown(0, 1, TimeUnit.SECONDS);
            client.other.shutdown(0, 1, TimeUnit.SECONDS);
        }
    }

    private void locks() throws Exception {
        contended(one.getLock(name + ":lock"), other.getLock(name + ":lock"), "lock");
        contended(one.getFairLock(name + ":fair"), other.getFairLock(name + ":fair"), "fair");

        RLock held = one.getLock(name + ":held");
        RLock rival = other.getLock(name + ":held");
        held.lock();
        held.lock();
        same("the number of holds", held.getHoldCount(), 2);
        same("a second owner", rival.tryLock(), false);
        // Nothing but the watchdog extends the lock.
        Thread.sleep(WATCHDOG_MS * 3 / 2);
        same("a second owner, after the time of the lock", rival.tryLock(), false);
        held.unlock();
        same("the lock after one of two releases", held.isLocked(), true);
        try {
            rival.unlock();
            throw new AssertionError("the lock of another client was released");
        } catch (IllegalMonitorStateException expected) {
            same("the lock", held.isLocked(), true);
        }
        // The release is published to the waiter, which waits for longer than the time of the lock.
        Future<Boolean> waits = in(() -> {
            boolean isLocked = rival.tryLock(30, 30, TimeUnit.SECONDS);
            rival.unlock();
            return isLocked;
        });
        held.unlock();
        same("the lock of the waiter", waits.get(30, TimeUnit.SECONDS), true);

        RLock leased = one.getLock(name + ":leased");
        long begin = System.nanoTime();
        leased.lock(400, TimeUnit.MILLISECONDS);
        same("a leased lock", other.getLock(name + ":leased").tryLock(30, 30, TimeUnit.SECONDS), true);
        same("the wait for its lease", System.nanoTime() - begin > 399_000_000, true);
        same("the owner of the lease", leased.isHeldByCurrentThread(), false);
        other.getLock(name + ":leased").unlock();
        RLock both = one.getMultiLock(one.getLock(name + ":a"), one.getLock(name + ":b"));
        both.lock(30, TimeUnit.SECONDS);
        same("a lock of two", other.getLock(name + ":b").isLocked(), true);
        both.unlock();

        RReadWriteLock here = one.getReadWriteLock(name + ":shared");
        RReadWriteLock there = other.getReadWriteLock(name + ":shared");
        here.readLock().lock();
        same("a second reader", there.readLock().tryLock(), true);
        same("a writer while others read", there.writeLock().tryLock(), false);
        there.readLock().unlock();
        here.readLock().unlock();
        same("a writer", there.writeLock().tryLock(), true);
        same("a reader while another writes", here.readLock().tryLock(), false);
        there.writeLock().unlock();

        RSemaphore semaphore = one.getSemaphore(name + ":semaphore");
        semaphore.trySetPermits(2);
        AtomicInteger running = new AtomicInteger();
        AtomicInteger most = new AtomicInteger();
        all(6, at -> {
            RSemaphore own = (at % 2 == 0 ? one : other).getSemaphore(name + ":semaphore");
            own.acquire();
            most.accumulateAndGet(running.incrementAndGet(), Math::max);
            Thread.sleep(50);
            running.decrementAndGet();
            own.release();
        });
        same("the permits", List.of(most.get() <= 2, semaphore.availablePermits()), List.of(true, 2));
        RCountDownLatch latch = one.getCountDownLatch(name + ":latch");
        latch.trySetCount(2);
        Future<Boolean> opens = in(() -> other.getCountDownLatch(name + ":latch").await(30, TimeUnit.SECONDS));
        latch.countDown();
        latch.countDown();
        same("the end of the wait", opens.get(30, TimeUnit.SECONDS), true);
    }

    /** Lets threads of two clients add to a number that nothing but the lock protects. */
    private void contended(RLock here, RLock there, String what) throws Exception {
        String number = name + ":number:" + what;
        all(LOCKERS, at -> {
            RLock lock = at % 2 == 0 ? here : there;
            RedissonClient client = at % 2 == 0 ? one : other;
            for (int turn = 0; turn < TURNS; turn++) {
                lock.lock();
                try {
                    Object found = client.getBucket(number).get();
                    client.getBucket(number).set(Integer.toString(found == null ? 1 : Integer.parseInt((String) found) + 1));
                } finally {
                    lock.unlock();
                }
            }
        });
        same("the number", one.getBucket(number).get(), Integer.toString(LOCKERS * TURNS));
    }

    private void objects() throws Exception {
        RBlockingQueue<String> queue = one.getBlockingQueue(name + ":queue");
        Future<String> taken = in(() -> other.<String>getBlockingQueue(name + ":queue").poll(30, TimeUnit.SECONDS));
        queue.add("first");
        same("the taken element", taken.get(30, TimeUnit.SECONDS), "first");
        queue.addAll(List.of("a", "b", "c"));
        same("the removal", queue.remove("b"), true);
        same("the rest", queue.readAll(), List.of("a", "c"));

        RMapCache<String, String> map = one.getMapCache(name + ":map");
        same("a new entry", map.fastPut("long", "x", 60, TimeUnit.SECONDS), true);
        map.put("short", "y", 200, TimeUnit.MILLISECONDS);
        same("an existing entry", map.putIfAbsent("long", "z"), "x");
        same("a replaced entry", map.replace("long", "x", "w"), true);
        same("the remaining time of an entry", map.remainTimeToLive("long") > 50_000, true);
        until("an entry expires", () -> map.get("short") == null);
        same("the entries", map.readAllMap(), Map.of("long", "w"));
        same("the sum", String.valueOf((Object) map.addAndGet("sum", 5)), "5");

        RRateLimiter limiter = one.getRateLimiter(name + ":limiter");
        same("a new limit", limiter.trySetRate(RateType.OVERALL, 5, Duration.ofSeconds(60)), true);
        AtomicInteger allowed = new AtomicInteger();
        all(4, at -> {
            RRateLimiter own = (at % 2 == 0 ? one : other).getRateLimiter(name + ":limiter");
            for (int turn = 0; turn < 3; turn++) {
                allowed.addAndGet(own.tryAcquire() ? 1 : 0);
            }
        });
        same("the allowed calls", List.of((long) allowed.get(), limiter.availablePermits()), List.of(5L, 0L));

        RTopic topic = one.getTopic(name + ":topic");
        CountDownLatch heard = new CountDownLatch(2);
        topic.addListener(String.class, (channel, text) -> heard.countDown());
        one.getPatternTopic(name + ":top*").addListener(String.class, (pattern, channel, text) -> heard.countDown());
        same("the receivers", other.getTopic(name + ":topic").publish("text"), 2L);
        same("the messages", heard.await(30, TimeUnit.SECONDS), true);

        RAtomicLong number = one.getAtomicLong(name + ":long");
        same("a number", List.of(number.incrementAndGet(), number.getAndAdd(4)), List.of(1L, 1L));
        same("a compared number", List.of(number.compareAndSet(4, 7), number.compareAndSet(5, 7)), List.of(false, true));
        RScoredSortedSet<String> sorted = one.getScoredSortedSet(name + ":sorted");
        sorted.addAll(Map.of("x", 1.0, "y", 2.0, "z", 3.0));
        same("a rank", List.of(sorted.rank("y"), sorted.addScoreAndGetRank("x", 5)), List.of(1, 2));
        same("the elements", List.copyOf(sorted.readAll()), List.of("y", "z", "x"));
        one.getSet(name + ":set").addAll(Set.of("1", "2"));
        var batch = one.createBatch();
        batch.getAtomicLong(name + ":long").incrementAndGetAsync();
        batch.getSet(name + ":set").sizeAsync();
        same("a batch", batch.execute().getResponses(), Arrays.asList(8L, 2));
    }

    private static void same(String what, Object found, Object expected) {
        if (!Objects.equals(found, expected)) {
            throw new AssertionError(what + " is " + found + ", not " + expected);
        }
    }

    private static void until(String what, Callable<Boolean> holds) throws Exception {
        for (long end = System.nanoTime() + WAIT.toNanos(); System.nanoTime() < end; Thread.sleep(20)) {
            if (holds.call()) {
                return;
            }
        }
        throw new AssertionError("not within " + WAIT.toSeconds() + " s: " + what);
    }

    private interface Part {
        void run(int at) throws Exception;
    }

    private static <T> Future<T> in(Callable<T> run) {
        ExecutorService thread = Executors.newSingleThreadExecutor();
        Future<T> result = thread.submit(run);
        thread.shutdown();
        return result;
    }

    private static void all(int count, Part part) throws Exception {
        List<Future<Void>> parts = new ArrayList<>();
        for (int at = 0; at < count; at++) {
            int number = at;
            parts.add(in(() -> {
                part.run(number);
                return null;
            }));
        }
        for (Future<Void> each : parts) {
            each.get(WAIT.toSeconds(), TimeUnit.SECONDS);
        }
    }
}
