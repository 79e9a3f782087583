// Client franz-go under leader kills: an idempotent producer, a consumer group, and transactions. The history is
// described in xtask/src/compat/cluster/history.rs: failover HISTORY HOST:PORT..
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	partitions = 3
	keys       = 8
	period     = 20 * time.Millisecond
)

type event map[string]any

var (
	mu       sync.Mutex
	history  *os.File
	servers  []string
	ending   = make(chan struct{})
	produced = map[string]chan struct{}{"idempotent": make(chan struct{}), "tx-in": make(chan struct{})}
	ctx      = context.Background()
)

func main() {
	var err error
	history, err = os.OpenFile(os.Args[1], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	check(err)
	servers = os.Args[2:]
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(ending)
	}()
	add(event{"op": "client", "version": version()})
	cl := client()
	_, err = kadm.NewClient(cl).CreateTopics(ctx, partitions, 3, nil, topic("idempotent"), topic("tx-in"), topic("tx-out"))
	check(err)
	cl.Close()
	log := event{"log": true, "numbered": true, "ordered": true}
	stream("idempotent", log)
	stream("group", event{"log": true, "numbered": true, "from": "idempotent"})
	stream("tx-in", log)
	stream("tx-out", event{"log": true, "numbered": true, "ordered": true, "from": "tx-in"})
	var all sync.WaitGroup
	for _, workload := range []func(){func() { produce("idempotent") }, consume, func() { produce("tx-in") }, transform} {
		all.Go(workload)
	}
	all.Wait()
	readBack("idempotent", "group")
	readBack("tx-in")
	readBack("tx-out")
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, dep := range info.Deps {
		if dep.Path == "github.com/twmb/franz-go" {
			return dep.Version
		}
	}
	return ""
}

func topic(stream string) string { return "franz-go-" + stream }

func client(options ...kgo.Opt) *kgo.Client {
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(servers...)}, options...)...)
	check(err)
	return cl
}

// The history.

func add(e event) {
	line, err := json.Marshal(e)
	check(err)
	mu.Lock()
	defer mu.Unlock()
	_, err = history.Write(append(line, '\n'))
	check(err)
}

func stream(name string, promises event) {
	e := event{"op": "stream", "stream": name}
	for key, value := range promises {
		e[key] = value
	}
	add(e)
}

func now() int64 { return time.Now().UnixMilli() }

func parse(item string) (string, int) {
	name, number, _ := strings.Cut(item, ":")
	n, err := strconv.Atoi(number)
	check(err)
	return name, n
}

func sent(stream, item string, ok bool) {
	name, number := parse(item)
	outcome := "unknown"
	if ok {
		outcome = "ok"
	}
	add(event{"op": "sent", "stream": stream, "producer": name, "number": number, "outcome": outcome, "at": now()})
}

func lane(partition int32) string { return strconv.Itoa(int(partition)) }

func got(stream, reader string, r *kgo.Record) {
	name, number := parse(string(r.Value))
	id := strconv.FormatInt(r.Offset, 10)
	add(event{
		"op": "got", "stream": stream, "reader": reader, "lane": lane(r.Partition), "id": id, "producer": name, "number": number,
	})
}

func offset(op, stream string, partition int32, next int64) {
	add(event{"op": op, "stream": stream, "lane": lane(partition), "next": max(next, 0), "at": now()})
}

func failed(stream string, err error) {
	add(event{"op": "error", "stream": stream, "error": err.Error()})
}

// repeat calls again after an error, which the library reports once its own retries have ended.
func repeat(stream string, call func() error) {
	for err := call(); err != nil; err = call() {
		failed(stream, err)
		time.Sleep(200 * time.Millisecond)
	}
}

// The workloads.

func produce(stream string) {
	cl := client()
	number := 0
	tick := time.NewTicker(period)
	for isEnding := false; !isEnding; {
		select {
		case <-ending:
			isEnding = true
		case <-tick.C:
			item := fmt.Sprintf("p:%d", number)
			r := &kgo.Record{Topic: topic(stream), Key: fmt.Appendf(nil, "k%d", number%keys), Value: []byte(item)}
			cl.Produce(ctx, r, func(_ *kgo.Record, err error) {
				sent(stream, item, err == nil)
				if err != nil {
					failed(stream, err)
				}
			})
			number++
		}
	}
	check(cl.Flush(ctx))
	cl.Close()
	close(produced[stream])
}

// ends returns the end of each partition after the last record was produced, and otherwise nil.
func ends(stream string) (ends map[int32]int64) {
	select {
	case <-produced[stream]:
	default:
		return nil
	}
	cl := client()
	defer cl.Close()
	repeat(stream, func() error {
		listed, err := kadm.NewClient(cl).ListEndOffsets(ctx, topic(stream))
		if err == nil {
			err = listed.Error()
		}
		ends = map[int32]int64{}
		listed.Each(func(o kadm.ListedOffset) { ends[o.Partition] = o.Offset })
		return err
	})
	return ends
}

func isComplete(done, ends map[int32]int64) bool {
	if ends == nil {
		return false
	}
	for partition, end := range ends {
		if done[partition] < end {
			return false
		}
	}
	return true
}

// poll returns the records of at most 200 ms.
func poll(stream string, from func(context.Context) kgo.Fetches) []*kgo.Record {
	within, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	fetches := from(within)
	fetches.EachError(func(_ string, _ int32, err error) {
		if err != context.DeadlineExceeded {
			failed(stream, err)
		}
	})
	return fetches.Records()
}

// consume is a member of a group that commits after each batch.
func consume() {
	group := "franz-go"
	cl := client(kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic("idempotent")), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll())
	done := map[int32]int64{}
	var until map[int32]int64
	for !isComplete(done, until) {
		if until == nil {
			until = ends("idempotent")
		}
		records := poll("group", cl.PollFetches)
		for _, r := range records {
			got("group", "group", r)
		}
		if len(records) > 0 {
			err := cl.CommitRecords(ctx, records...)
			if err != nil {
				// The partitions may have been assigned again: the next batch commits.
				failed("group", err)
			}
			for _, r := range records {
				if err == nil {
					done[r.Partition] = max(done[r.Partition], r.Offset+1)
				}
			}
			if err == nil {
				for partition, next := range done {
					offset("committed", "group", partition, next)
				}
			}
		}
		cl.AllowRebalance()
	}
	cl.CloseAllowingRebalance()
	other := client()
	defer other.Close()
	var positions kadm.OffsetResponses
	repeat("group", func() (err error) {
		positions, err = kadm.NewClient(other).FetchOffsets(ctx, group)
		return err
	})
	positions.Each(func(o kadm.OffsetResponse) { offset("position", "group", o.Partition, o.At) })
}

// transform reads a topic, writes its records to another one, and commits both in transactions.
func transform() {
	open := func() *kgo.GroupTransactSession {
		session, err := kgo.NewGroupTransactSession(
			kgo.SeedBrokers(servers...), kgo.TransactionalID("franz-go"), kgo.ConsumerGroup("franz-go-tx"),
			kgo.ConsumeTopics(topic("tx-in")), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
			kgo.RequireStableFetchOffsets())
		check(err)
		return session
	}
	session := open()
	defer func() { session.Close() }()
	done := map[int32]int64{}
	var until map[int32]int64
	for !isComplete(done, until) {
		if until == nil {
			until = ends("tx-in")
		}
		records := poll("tx-out", session.PollFetches)
		if len(records) == 0 {
			continue
		}
		if err := session.Begin(); err != nil {
			// The documentation of Begin: the client is fatally failed.
			panic(err)
		}
		failure := kgo.AbortingFirstErrPromise(session.Client())
		for _, r := range records {
			session.Produce(ctx, &kgo.Record{Topic: topic("tx-out"), Key: r.Key, Value: r.Value}, failure.Promise())
		}
		isGood := failure.Err() == nil
		committed, err := session.End(ctx, kgo.TransactionEndTry(isGood))
		for _, r := range records {
			sent("tx-out", string(r.Value), committed)
			if committed {
				done[r.Partition] = max(done[r.Partition], r.Offset+1)
			}
		}
		if !isGood {
			failed("tx-out", failure.Err())
		}
		if err != nil {
			failed("tx-out", err)
			// The documentation of End: no error can be tried again. Only a new session learns whether the transaction
			// was committed: it reads on at the group's offsets.
			session.Close()
			session = open()
		}
	}
}

func readBack(stream string, more ...string) {
	from := topic(stream)
	all := map[int32]kgo.Offset{}
	for partition := range int32(partitions) {
		all[partition] = kgo.NewOffset().AtStart()
	}
	cl := client(
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{from: all}), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords())
	defer cl.Close()
	listed, err := kadm.NewClient(cl).ListCommittedOffsets(ctx, from)
	check(err)
	until, done := map[int32]int64{}, map[int32]int64{}
	listed.Each(func(o kadm.ListedOffset) { until[o.Partition] = o.Offset })
	for !isComplete(done, until) {
		for _, r := range poll(stream, cl.PollFetches) {
			done[r.Partition] = r.Offset + 1
			if r.Attrs.IsControl() {
				continue
			}
			for _, each := range append([]string{stream}, more...) {
				got(each, "final", r)
			}
		}
	}
}
