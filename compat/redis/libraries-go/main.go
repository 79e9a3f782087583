// Libraries of Go that are built of Lua scripts, as their users write them: libraries-go HOST:PORT [SCENARIO..]
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

const wait = time.Minute

var (
	ctx     = context.Background()
	address string
	// name begins the names of all queues and locks, so that runs do not disturb each other.
	name = "lib-" + uuid.NewString()[:8]

	errAsItShould = errors.New("as it should")
)

type library struct {
	name, module, what string
	run                func() error
}

var libraries = []library{
	{"asynq", "github.com/hibiken/asynq", "results, schedules, retries, archived and unique tasks, groups, cancellation, " +
		"periodic tasks, a server that ends early, the inspector", runAsynq},
	{"redsync", "github.com/go-redsync/redsync/v4", "a mutex under contention, its extension, its expiration, foreign owners",
		runRedsync},
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: libraries-go HOST:PORT [SCENARIO..]")
		os.Exit(2)
	}
	address = os.Args[1]
	fmt.Println("client libraries-go go-redis-" + version("github.com/redis/go-redis/v9"))
	isFine := true
	for _, each := range selected(os.Args[2:]) {
		fmt.Printf("library %s %s: %s\n", each.name, version(each.module), each.what)
		begin := time.Now()
		if err := each.run(); err != nil {
			isFine = false
			fmt.Printf("FAILED %s: %.300s\n", each.name, strings.Join(strings.Fields(err.Error()), " "))
		} else {
			fmt.Printf("ok %s (%.1f s)\n", each.name, time.Since(begin).Seconds())
		}
		if err := clean(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	if !isFine {
		os.Exit(1)
	}
}

func selected(names []string) []library {
	if len(names) == 0 {
		return libraries
	}
	var found []library
	for _, name := range names {
		before := len(found)
		for _, each := range libraries {
			if each.name == name {
				found = append(found, each)
			}
		}
		if len(found) == before {
			fmt.Fprintln(os.Stderr, "there is no scenario", name)
			os.Exit(2)
		}
	}
	return found
}

func version(module string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, each := range info.Deps {
			if each.Path == module {
				return strings.TrimPrefix(each.Version, "v")
			}
		}
	}
	return "unknown"
}

func clean() error {
	client := redis.NewClient(&redis.Options{Addr: address})
	defer client.Close()
	all := client.Scan(ctx, 0, "*"+name+"*", 1000).Iterator()
	for all.Next(ctx) {
		if err := client.Del(ctx, all.Val()).Err(); err != nil {
			return err
		}
	}
	return all.Err()
}

func same(what string, found, expected any) error {
	if !reflect.DeepEqual(found, expected) {
		return fmt.Errorf("%s is %v, not %v", what, found, expected)
	}
	return nil
}

func until(what string, holds func() bool) error {
	for limit := time.Now().Add(wait); time.Now().Before(limit); time.Sleep(20 * time.Millisecond) {
		if holds() {
			return nil
		}
	}
	return fmt.Errorf("not within %s: %s", wait, what)
}

// all returns the first error of steps, which run in order until then.
func all(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}
