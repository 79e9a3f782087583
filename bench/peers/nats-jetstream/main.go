// Command jetstream-load puts one producer and one consumer on a stream of a
// NATS server and reports their rates and latencies, with the keys of `thalweg
// bench stream --json`.
package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	stream  = "bench"
	subject = "bench.load"
	stall   = 20 * time.Second // no progress for this long means loss
	stamp   = 16               // bytes of a payload for its time of sending and its index
)

type config struct {
	url         string
	Storage     string  `json:"storage"`
	Records     int     `json:"records"`
	RecordBytes int     `json:"record_bytes"`
	InFlight    int     `json:"in_flight"`
	Rate        float64 `json:"rate_per_s,omitempty"`
	Consumer    string  `json:"consumer"`
	Replicas    int     `json:"replication"`
}

// latency holds the distribution of the samples, in microseconds.
type latency struct {
	Count int     `json:"count"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p999"`
	Max   float64 `json:"max"`
}

type result struct {
	System string `json:"system"`
	config
	Bytes           int64    `json:"bytes"`
	Partitions      int      `json:"partitions"`
	Transport       string   `json:"transport"`
	Produced        int      `json:"produced"`
	Consumed        int      `json:"consumed"`
	Lost            int      `json:"lost"`
	Damaged         int      `json:"damaged"`
	Disordered      int      `json:"disordered"`
	ProducedSeconds float64  `json:"produced_seconds"`
	ProducedPerS    float64  `json:"produced_per_s"`
	ProducedMBPerS  float64  `json:"produced_mb_per_s"`
	ConsumedSeconds float64  `json:"consumed_seconds,omitempty"`
	ConsumedPerS    float64  `json:"consumed_per_s,omitempty"`
	ConsumedMBPerS  float64  `json:"consumed_mb_per_s,omitempty"`
	ProducerUS      *latency `json:"producer_us,omitempty"`
	E2EUS           *latency `json:"e2e_us,omitempty"`
	ClientCPU       float64  `json:"client_cpu_seconds"`
}

func main() {
	var c config
	flag.StringVar(&c.url, "url", nats.DefaultURL, "server `URL`")
	flag.StringVar(&c.Storage, "storage", "file", "file or memory")
	flag.IntVar(&c.Records, "records", 10_000, "total number of records")
	flag.IntVar(&c.RecordBytes, "record-bytes", 1036, "bytes of a record")
	flag.IntVar(&c.InFlight, "in-flight", 1, "maximum number of unacknowledged records; 1 publishes one by one")
	flag.Float64Var(&c.Rate, "rate", 0, "records per second, open loop; latencies are measured from the time a record was due")
	flag.StringVar(&c.Consumer, "consumer", "together", "together, after or none")
	flag.IntVar(&c.Replicas, "replicas", 1, "replicas of the stream")
	flag.Parse()

	log.SetFlags(0)
	log.SetPrefix("jetstream-load: ")
	r, err := run(c)
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		log.Fatal(err)
	}
	if r.Lost+r.Damaged+r.Disordered != 0 {
		log.Fatalf("%d records lost, %d damaged, %d out of order", r.Lost, r.Damaged, r.Disordered)
	}
}

func run(c config) (*result, error) {
	var err error
	switch {
	case flag.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q", flag.Arg(0))
	case c.RecordBytes < stamp || c.Records < 1 || c.InFlight < 1 || c.Rate < 0:
		return nil, fmt.Errorf("-record-bytes must be %d or more; -records and -in-flight 1 or more", stamp)
	case c.Consumer != "together" && c.Consumer != "after" && c.Consumer != "none":
		return nil, fmt.Errorf("unknown consumer %q", c.Consumer)
	case c.Storage != "file" && c.Storage != "memory":
		return nil, fmt.Errorf("unknown storage %q", c.Storage)
	}
	storage := jetstream.FileStorage
	if c.Storage == "memory" {
		storage = jetstream.MemoryStorage
	}
	settings := jetstream.StreamConfig{Name: stream, Subjects: []string{subject}, Storage: storage, Replicas: c.Replicas}
	if c.url, err = create(c.url, settings); err != nil {
		return nil, err
	}
	// Separate connections, like those of two programs.
	sender, _, err := connect(c.url, jetstream.WithPublishAsyncMaxPending(c.InFlight))
	if err != nil {
		return nil, err
	}
	reader, _, err := connect(c.url)
	if err != nil {
		return nil, err
	}
	consumer, err := reader.OrderedConsumer(context.Background(), stream, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, err
	}

	r := &result{
		System: "jetstream", config: c, Bytes: int64(c.Records) * int64(c.RecordBytes),
		Partitions: 1, Transport: "tcp",
	}
	before, begin := cpuTime(), time.Now()
	if c.Consumer == "together" {
		done := make(chan error, 1)
		go func() { done <- consume(c, consumer, begin, r) }()
		err = errors.Join(produce(c, sender, begin, r), <-done)
	} else if err = produce(c, sender, begin, r); err == nil && c.Consumer == "after" {
		err = consume(c, consumer, begin, r)
		// The time that records stayed in the log before the consumer started is not a transfer latency.
		r.E2EUS = nil
	}
	r.ClientCPU = (cpuTime() - before).Seconds()
	return r, err
}

// produce publishes all records and waits for their acknowledgements.
func produce(c config, js jetstream.JetStream, begin time.Time, r *result) error {
	payload := make([]byte, c.RecordBytes)
	for i := range payload {
		payload[i] = byte(' ' + i*31%95)
	}
	samples := make([]time.Duration, c.Records)
	type pending struct {
		future jetstream.PubAckFuture
		sent   time.Time
		index  int
	}
	onWay := make(chan pending, c.InFlight)
	failed := make(chan error, 1)
	go func() {
		var err error
		for p := range onWay {
			select {
			case <-p.future.Ok():
				samples[p.index] = time.Since(p.sent)
			case e := <-p.future.Err():
				err = errors.Join(err, e)
			case <-time.After(stall):
				err = errors.Join(err, fmt.Errorf("no acknowledgement of record %d", p.index))
			}
		}
		failed <- err
	}()
	var sendErr error
	for i := range c.Records {
		sent := time.Now()
		if c.Rate > 0 {
			sent = begin.Add(time.Duration(float64(i) / c.Rate * float64(time.Second)))
			time.Sleep(time.Until(sent))
		}
		binary.BigEndian.PutUint64(payload, uint64(sent.Sub(begin)))
		binary.BigEndian.PutUint64(payload[8:], uint64(i))
		if c.InFlight == 1 && c.Rate == 0 {
			if _, err := js.Publish(context.Background(), subject, payload); err != nil {
				sendErr = err
				break
			}
			samples[i] = time.Since(sent)
			continue
		}
		// PublishAsync waits while too many are in flight, and copies the payload before it returns.
		future, err := js.PublishAsync(subject, payload, jetstream.WithStallWait(stall))
		if err != nil {
			sendErr = err
			break
		}
		onWay <- pending{future, sent, i}
	}
	close(onWay)
	if err := errors.Join(sendErr, <-failed); err != nil {
		return err
	}
	r.Produced = c.Records
	r.ProducedSeconds = time.Since(begin).Seconds()
	r.ProducedPerS = float64(c.Records) / r.ProducedSeconds
	r.ProducedMBPerS = r.ProducedPerS * float64(c.RecordBytes) / 1e6
	r.ProducerUS = summarize(samples)
	return nil
}

// consume reads until all records have been received, or no more arrive.
func consume(c config, consumer jetstream.Consumer, begin time.Time, r *result) error {
	messages, err := consumer.Messages(jetstream.PullMaxMessages(10_000))
	if err != nil {
		return err
	}
	defer messages.Stop()
	started, last := time.Now(), time.Now()
	samples := make([]time.Duration, 0, c.Records)
	for next := uint64(0); next < uint64(c.Records); {
		m, err := messages.Next(jetstream.NextMaxWait(stall))
		if err != nil {
			break
		}
		last = time.Now()
		data := m.Data()
		if len(data) != c.RecordBytes {
			r.Damaged++
			continue
		}
		sent := time.Duration(binary.BigEndian.Uint64(data))
		index := binary.BigEndian.Uint64(data[8:])
		if index != next {
			r.Disordered++
		}
		next = index + 1
		r.Consumed++
		samples = append(samples, last.Sub(begin)-sent)
	}
	r.Lost = c.Records - r.Consumed
	r.ConsumedSeconds = last.Sub(started).Seconds()
	r.ConsumedPerS = float64(r.Consumed) / r.ConsumedSeconds
	r.ConsumedMBPerS = r.ConsumedPerS * float64(c.RecordBytes) / 1e6
	r.E2EUS = summarize(samples)
	return nil
}

func summarize(samples []time.Duration) *latency {
	if len(samples) == 0 {
		return nil
	}
	slices.Sort(samples)
	var sum time.Duration
	for _, d := range samples {
		sum += d
	}
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	rank := func(q float64) float64 { // nearest rank
		return us(samples[int(math.Ceil(q*float64(len(samples))))-1])
	}
	mean := us(sum) / float64(len(samples))
	return &latency{len(samples), mean, rank(.5), rank(.9), rank(.99), rank(.999), rank(1)}
}

// create makes the stream, and returns the URL of the server that leads it: a
// publish to another server takes one hop more.
func create(urls string, settings jetstream.StreamConfig) (string, error) {
	js, nc, err := connect(urls)
	if err != nil {
		return "", err
	}
	defer nc.Close()
	made, err := js.CreateStream(context.Background(), settings)
	// A new cluster may not know all of its servers yet.
	for begin := time.Now(); err != nil && time.Since(begin) < stall; {
		time.Sleep(100 * time.Millisecond)
		made, err = js.CreateStream(context.Background(), settings)
	}
	if err != nil {
		return "", err
	}
	cluster := made.CachedInfo().Cluster
	if cluster == nil {
		return urls, nil
	}
	for url := range strings.SplitSeq(urls, ",") {
		_, nc, err := connect(url)
		if err != nil {
			return "", err
		}
		name := nc.ConnectedServerName()
		nc.Close()
		if name == cluster.Leader {
			return url, nil
		}
	}
	return "", fmt.Errorf("no URL of the server %q, which leads the stream", cluster.Leader)
}

// connect opens a connection that never reconnects, so that a disconnection is visible.
func connect(url string, options ...jetstream.JetStreamOpt) (jetstream.JetStream, *nats.Conn, error) {
	onCut := func(nc *nats.Conn, err error) {
		if err != nil {
			log.Print("connection cut: ", err)
		}
	}
	nc, err := nats.Connect(url, nats.NoReconnect(), nats.DisconnectErrHandler(onCut))
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", url, err)
	}
	js, err := jetstream.New(nc, options...)
	return js, nc, err
}

// cpuTime returns the user and system time of this process so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // cannot fail for the calling process
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
