// Checks linearizability: runs concurrent clients on a few keys, and searches for one order of all operations that
// explains all replies, in which no operation precedes one that had ended before it began.
//
//	linearizability [-clients N] [-seconds N] [-seed N] [-html FILE] HOST:PORT
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"
)

const (
	// scenario is the name of the only scenario, for lists of clients.
	scenario = "linearizable"
	// keys is the number of keys of a round: few, so that clients conflict.
	keys = 3
	// roundOperations is the number per client and round. A round has separate keys, because a check's cost grows faster.
	roundOperations = 250
	checkTime       = 60 * time.Second
	answerTime      = 10 * time.Second
)

type settings struct {
	address string
	clients int
	seconds float64
	seed    uint64
	html    string
}

func main() {
	var s settings
	flag.IntVar(&s.clients, "clients", 8, "number of concurrent clients")
	flag.Float64Var(&s.seconds, "seconds", 5, "duration in seconds")
	flag.Uint64Var(&s.seed, "seed", 1, "of what they do")
	flag.StringVar(&s.html, "html", "target/compat/linearizability.html", "file for the drawing of an invalid history")
	flag.Parse()
	s.address = flag.Arg(0)
	if s.address == "" || slices.ContainsFunc(flag.Args()[1:], func(name string) bool { return name != scenario }) {
		flag.Usage()
		os.Exit(2)
	}
	fmt.Println("client linearizability", version())
	begin := time.Now()
	count, unknown, err := run(s)
	if err != nil {
		fmt.Printf("FAILED %s: %v\n", scenario, err)
		os.Exit(1)
	}
	fmt.Printf("ok %s (%.1f s): %d operations of %d clients, %d without an answer\n",
		scenario, time.Since(begin).Seconds(), count, s.clients, unknown)
}

func version() string {
	if info, is := debug.ReadBuildInfo(); is {
		for _, dependency := range info.Deps {
			if dependency.Path == "github.com/anishathalye/porcupine" {
				return dependency.Version
			}
		}
	}
	return "unknown"
}

// run runs rounds until the time has elapsed, and counts operations.
func run(s settings) (count, unknown int, err error) {
	clients := []*client{}
	for id := range s.clients {
		c := newClient(s, id)
		defer c.redis.Close()
		clients = append(clients, c)
	}
	begin := time.Now()
	for round := 0; time.Since(begin).Seconds() < s.seconds; round++ {
		history := oneRound(clients, round, begin)
		for _, operation := range history {
			if operation.Output.(output).unknown {
				unknown++
			}
		}
		if len(history) == unknown {
			return count, unknown, fmt.Errorf("no operation was answered at %s: %v", s.address, clients[0].lost)
		}
		count += len(history)
		if err := check(history, s.html); err != nil {
			return count, unknown, fmt.Errorf("in round %d of seed %d: %w", round, s.seed, err)
		}
	}
	return count, unknown, nil
}

func check(history []porcupine.Operation, html string) error {
	verdict, info := porcupine.CheckOperationsVerbose(model(), history, checkTime)
	switch verdict {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return fmt.Errorf("%d operations were not checked within %v", len(history), checkTime)
	}
	if err := os.MkdirAll(filepath.Dir(html), 0o755); err != nil {
		return err
	}
	if err := porcupine.VisualizePath(model(), info, html); err != nil {
		return err
	}
	return fmt.Errorf("no order explains the replies of %d operations: %s shows them", len(history), html)
}

// oneRound returns the operations of all clients on the keys of the round, which it then deletes.
func oneRound(clients []*client, round int, begin time.Time) []porcupine.Operation {
	names := []string{}
	for key := range keys {
		names = append(names, fmt.Sprintf("linearizability-%d-%d-%d", os.Getpid(), round, key))
	}
	histories := make([][]porcupine.Operation, len(clients))
	var all sync.WaitGroup
	for at, c := range clients {
		all.Go(func() { histories[at] = c.round(names, begin) })
	}
	all.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	if err := clients[0].redis.Del(ctx, names...).Err(); err != nil {
		clients[0].lost = err
	}
	return slices.Concat(histories...)
}

// client is one connection, with the random generator that selects its operations.
type client struct {
	id     int
	redis  *redis.Client
	random *rand.Rand
	// next is the next number to set. No other client sets it.
	next int64
	// lost is the error of the last operation without a reply.
	lost error
}

func newClient(s settings, id int) *client {
	// An operation without a reply must not be sent again.
	options := &redis.Options{
		Addr: s.address, PoolSize: 1, MaxRetries: -1, DialTimeout: answerTime, ReadTimeout: answerTime,
	}
	random := rand.New(rand.NewPCG(s.seed, uint64(id)))
	return &client{id: id, redis: redis.NewClient(options), random: random, next: int64(id+1) * 1_000_000_000}
}

func (c *client) round(names []string, begin time.Time) []porcupine.Operation {
	history := []porcupine.Operation{}
	for range roundOperations {
		c.next += 1000
		in := input{kind: kind(c.random.IntN(int(kinds))), key: names[c.random.IntN(len(names))], number: c.next}
		if in.kind == incrBy {
			in.number = c.random.Int64N(9) + 1
		}
		operation := porcupine.Operation{ClientId: c.id, Input: in, Call: time.Since(begin).Nanoseconds()}
		out, err := c.do(in)
		operation.Return = time.Since(begin).Nanoseconds()
		if err != nil {
			c.lost = err
			if in.kind == get {
				// A get without a reply has no known result and no effect.
				continue
			}
			out.unknown = true
			operation.Return = math.MaxInt64
		}
		operation.Output = out
		history = append(history, operation)
	}
	return history
}

func (c *client) do(in input) (out output, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	switch in.kind {
	case get:
		out.value, err = read(c.redis.Get(ctx, in.key))
	case set:
		err = c.redis.Set(ctx, in.key, in.number, 0).Err()
	case setNX:
		err = c.redis.SetArgs(ctx, in.key, in.number, redis.SetArgs{Mode: "NX"}).Err()
		if out.done = err == nil; errors.Is(err, redis.Nil) {
			err = nil
		}
	case incrBy:
		out.value.exists = true
		out.value.number, err = c.redis.IncrBy(ctx, in.key, in.number).Result()
	case del:
		var count int64
		count, err = c.redis.Del(ctx, in.key).Result()
		out.done = count == 1
	case getSet:
		out.value, err = read(c.redis.GetSet(ctx, in.key, in.number))
	case compareAndSet:
		err = c.redis.Watch(ctx, func(tx *redis.Tx) (err error) {
			if out.value, err = read(tx.Get(ctx, in.key)); err != nil {
				return err
			}
			_, err = tx.TxPipelined(ctx, func(pipeline redis.Pipeliner) error {
				return pipeline.Set(ctx, in.key, in.number, 0).Err()
			})
			return err
		}, in.key)
		if out.done = err == nil; errors.Is(err, redis.TxFailedErr) {
			err = nil
		}
	}
	return out, err
}

func read(answer *redis.StringCmd) (value, error) {
	number, err := answer.Int64()
	if errors.Is(err, redis.Nil) {
		return value{}, nil
	}
	return value{number, err == nil}, err
}
