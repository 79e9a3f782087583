package main

import (
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

const lockers, turns = 8, 25

func runRedsync() error {
	client := redis.NewClient(&redis.Options{Addr: address})
	defer client.Close()
	locks := redsync.New(goredis.NewPool(client))
	return all(
		func() error { return contended(client, locks) },
		func() error { return owned(client, locks) },
		func() error { return expiring(locks) },
	)
}

// contended lets several clients add to a number that nothing but the mutex protects.
func contended(client *redis.Client, locks *redsync.Redsync) error {
	number := name + ":number"
	failures := make(chan error, lockers)
	var running sync.WaitGroup
	for range lockers {
		running.Go(func() {
			mutex := locks.NewMutex(name+":lock", redsync.WithExpiry(30*time.Second), redsync.WithTries(10_000),
				redsync.WithRetryDelay(2*time.Millisecond))
			for range turns {
				if err := locked(mutex, func() error { return add(client, number) }); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	running.Wait()
	close(failures)
	if err := <-failures; err != nil {
		return err
	}
	total, err := client.Get(ctx, number).Int()
	if err != nil {
		return err
	}
	return same("the number", total, lockers*turns)
}

func locked(mutex *redsync.Mutex, run func() error) error {
	if err := mutex.Lock(); err != nil {
		return err
	}
	if err := run(); err != nil {
		return err
	}
	if isReleased, err := mutex.Unlock(); err != nil || !isReleased {
		return errors.Join(errors.New("a mutex was not released"), err)
	}
	return nil
}

func add(client *redis.Client, number string) error {
	text, err := client.Get(ctx, number).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	value, _ := strconv.Atoi(text)
	return client.Set(ctx, number, value+1, 0).Err()
}

// owned checks that only the owner extends and releases a mutex.
func owned(client *redis.Client, locks *redsync.Redsync) error {
	key := name + ":owned"
	mutex := locks.NewMutex(key, redsync.WithExpiry(time.Minute))
	rival := locks.NewMutex(key, redsync.WithTries(1))
	if err := mutex.Lock(); err != nil {
		return err
	}
	var taken *redsync.ErrTaken
	if err := rival.TryLock(); !errors.As(err, &taken) {
		return errors.Join(errors.New("a second client was not refused"), err)
	}
	if isExtended, err := mutex.Extend(); err != nil || !isExtended {
		return errors.Join(errors.New("a mutex was not extended"), err)
	}
	if left := client.PTTL(ctx, key).Val(); left <= 59*time.Second {
		return same("the remaining time", left, "nearly a minute")
	}
	if err := client.Set(ctx, key, "of another client", 0).Err(); err != nil {
		return err
	}
	if isExtended, err := mutex.Extend(); err == nil || isExtended {
		return errors.New("the mutex of another client was extended")
	}
	if isReleased, err := mutex.Unlock(); err == nil || isReleased {
		return errors.New("the mutex of another client was released")
	}
	return same("the value", client.Get(ctx, key).Val(), "of another client")
}

// expiring waits for a mutex whose owner does not release it.
func expiring(locks *redsync.Redsync) error {
	first := locks.NewMutex(name+":expiring", redsync.WithExpiry(500*time.Millisecond))
	second := locks.NewMutex(name+":expiring", redsync.WithTries(1000), redsync.WithRetryDelay(10*time.Millisecond))
	begin := time.Now()
	if err := first.Lock(); err != nil {
		return err
	}
	if err := second.Lock(); err != nil {
		return err
	}
	if waited := time.Since(begin); waited < 500*time.Millisecond {
		return same("the wait", waited, "at least 500 ms")
	}
	if isReleased, _ := first.Unlock(); isReleased {
		return errors.New("an expired mutex was released")
	}
	if isReleased, err := second.Unlock(); err != nil || !isReleased {
		return errors.Join(errors.New("a mutex was not released"), err)
	}
	return nil
}
