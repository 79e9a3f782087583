// Command nats-load puts load on a NATS server and reports throughput or
// latency, so that the server can be measured next to Thalweg.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	subject = "bench.load"
	warmUp  = 1000            // untimed samples before a latency run
	stall   = 5 * time.Second // no progress for this long means loss

	// The server cuts off a subscriber with more than 64 MiB outstanding, so
	// publishers never run further than this ahead of the slowest subscriber.
	windowBytes = 8 << 20
	msgOverhead = 64 // rough protocol bytes per message
)

type config struct {
	url   string
	Mode  string `json:"mode"`
	Size  int    `json:"size"`
	Count int64  `json:"count"`
	Subs  int    `json:"subs"`
	Pubs  int    `json:"pubs"`
}

// window is windowBytes in messages.
func (c config) window() int64 {
	return max(1, int64(windowBytes/(c.Size+msgOverhead)))
}

// latency holds the distribution of the samples, in microseconds.
type latency struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

type result struct {
	System string `json:"system"`
	config
	Seconds       float64  `json:"seconds"`
	PublishedPerS float64  `json:"published_per_s,omitempty"`
	DeliveredPerS float64  `json:"delivered_per_s,omitempty"`
	Lost          *int64   `json:"lost,omitempty"`
	LatencyUS     *latency `json:"latency_us,omitempty"`
	ClientCPU     float64  `json:"client_cpu_seconds"`
}

func main() {
	var c config
	flag.StringVar(&c.url, "url", nats.DefaultURL, "server `URL`")
	flag.StringVar(&c.Mode, "mode", "fanout", "fanout, publish, latency or request")
	flag.IntVar(&c.Size, "size", 100, "payload `bytes`")
	flag.Int64Var(&c.Count, "count", 200_000, "total number of messages (or samples)")
	flag.IntVar(&c.Subs, "subs", 1, "subscribers (fanout)")
	flag.IntVar(&c.Pubs, "pubs", 1, "publishers (fanout, publish)")
	oneLine := flag.Bool("json", false, "print the result as one line of JSON, not indented")
	flag.Parse()

	log.SetFlags(0)
	log.SetPrefix("nats-load: ")
	r, err := run(c)
	if err != nil {
		log.Fatal(err)
	}
	out := json.NewEncoder(os.Stdout)
	if !*oneLine {
		out.SetIndent("", "  ")
	}
	if err := out.Encode(r); err != nil {
		log.Fatal(err)
	}
	if r.Lost != nil && *r.Lost != 0 {
		log.Fatalf("%d deliveries lost", *r.Lost)
	}
}

// run opens the connections, those of the subscribers first, and runs the mode.
func run(c config) (*result, error) {
	modes := map[string]func(config, []*nats.Conn) (*result, error){
		"fanout": fanout, "publish": publish, "latency": oneWay, "request": request,
	}
	mode := modes[c.Mode]
	switch {
	case mode == nil:
		return nil, fmt.Errorf("unknown mode %q", c.Mode)
	case flag.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q", flag.Arg(0))
	case c.Size < 0 || c.Count < 1 || c.Subs < 1 || c.Pubs < 1:
		return nil, errors.New("-size must be 0 or more; -count, -subs and -pubs 1 or more")
	case c.Mode == "publish":
		c.Subs = 0
	case c.Mode != "fanout":
		c.Subs, c.Pubs = 1, 1
	}
	conns, err := connect(c.url, c.Subs+c.Pubs)
	if err != nil {
		return nil, err
	}
	return mode(c, conns)
}

// subscriber counts the deliveries on one connection.
type subscriber struct {
	got atomic.Int64
	_   [64]byte // keep the counters on separate cache lines
}

// fanout times the first publish to the last delivery.
func fanout(c config, conns []*nats.Conn) (*result, error) {
	subs := make([]*subscriber, c.Subs)
	var finished atomic.Int64
	complete := make(chan time.Time, 1)
	for i := range subs {
		s := &subscriber{}
		subs[i] = s
		err := listen(conns[i], func(m *nats.Msg) {
			if len(m.Data) != c.Size {
				return // a different payload: counted as lost
			}
			if s.got.Add(1) == c.Count && finished.Add(1) == int64(c.Subs) {
				complete <- time.Now()
			}
		})
		if err != nil {
			return nil, err
		}
	}

	var published atomic.Int64
	behind := func() bool {
		slowest := int64(math.MaxInt64)
		for _, s := range subs {
			slowest = min(slowest, s.got.Load())
		}
		return published.Load()-slowest >= c.window()
	}
	cpu0, start := cpuTime(), time.Now()
	sent := startPublishers(c, conns[c.Subs:], &published, behind)

	var delivered int64
	cpu, end := cpu0, start // as of the last progress seen
	tick := time.NewTicker(20 * time.Millisecond)
	for stalled := false; !stalled && (complete != nil || sent != nil); {
		select {
		case end = <-complete:
			delivered, cpu, complete = total(subs), cpuTime(), nil
		case err := <-sent:
			if err != nil {
				return nil, err
			}
			sent = nil
		case <-tick.C:
			if now := total(subs); now != delivered {
				delivered, cpu, end = now, cpuTime(), time.Now()
			}
			stalled = time.Since(end) > stall
		}
	}
	lost := c.Count*int64(c.Subs) - delivered
	r := newResult(c, end.Sub(start), cpu-cpu0, published.Load())
	if r.Seconds > 0 {
		r.DeliveredPerS = float64(delivered) / r.Seconds
	}
	r.Lost = &lost
	return r, nil
}

func total(subs []*subscriber) (n int64) {
	for _, s := range subs {
		n += s.got.Load()
	}
	return n
}

// publish times publishing without any subscriber, the flush included.
func publish(c config, conns []*nats.Conn) (*result, error) {
	var published atomic.Int64
	cpu0, start := cpuTime(), time.Now()
	err := <-startPublishers(c, conns, &published, func() bool { return false })
	took, cpu := time.Since(start), cpuTime()-cpu0
	return newResult(c, took, cpu, published.Load()), err
}

// startPublishers divides c.Count messages among the connections, each pausing
// before a chunk of messages while behind returns true. The returned channel
// yields the first error, or nil once all have published and flushed.
func startPublishers(c config, conns []*nats.Conn, published *atomic.Int64, behind func() bool) <-chan error {
	chunk := min(256, max(1, c.window()/16))
	pubs := int64(len(conns))
	done := make(chan error, pubs+1)
	var all sync.WaitGroup
	for i, nc := range conns {
		left := (c.Count + int64(i)) / pubs // these shares add up to c.Count
		all.Go(func() {
			payload := make([]byte, c.Size)
			for left > 0 {
				for behind() {
					time.Sleep(50 * time.Microsecond)
				}
				burst := min(left, chunk)
				for range burst {
					if err := nc.Publish(subject, payload); err != nil {
						done <- err
						return
					}
				}
				published.Add(burst)
				left -= burst
			}
			if err := nc.FlushTimeout(time.Minute); err != nil {
				done <- err
			}
		})
	}
	go func() { all.Wait(); done <- nil }()
	return done
}

// oneWay times single messages from one connection to another.
func oneWay(c config, conns []*nats.Conn) (*result, error) {
	arrived := make(chan *nats.Msg, 1)
	_, err := conns[0].ChanSubscribe(subject, arrived)
	if err := errors.Join(err, conns[0].Flush()); err != nil {
		return nil, err
	}
	timeout := time.NewTimer(stall)
	return sample(c, func(payload []byte) error {
		timeout.Reset(stall)
		if err := conns[1].Publish(subject, payload); err != nil {
			return err
		}
		select {
		case <-arrived:
			return nil
		case <-timeout.C:
			return errors.New("message not delivered")
		}
	})
}

// request times request/reply round trips; the reply echoes the request.
func request(c config, conns []*nats.Conn) (*result, error) {
	echo := func(m *nats.Msg) { _ = m.Respond(m.Data) } // a failure times the request out
	if err := listen(conns[0], echo); err != nil {
		return nil, err
	}
	return sample(c, func(payload []byte) error {
		_, err := conns[1].Request(subject, payload, stall)
		return err
	})
}

// sample warms up, then times c.Count calls of exchange one after another.
func sample(c config, exchange func(payload []byte) error) (*result, error) {
	payload := make([]byte, c.Size)
	for range warmUp {
		if err := exchange(payload); err != nil {
			return nil, fmt.Errorf("warm-up: %w", err)
		}
	}
	samples := make([]time.Duration, c.Count)
	cpu0, start := cpuTime(), time.Now()
	for i := range samples {
		sent := time.Now()
		if err := exchange(payload); err != nil {
			return nil, fmt.Errorf("sample %d: %w", i, err)
		}
		samples[i] = time.Since(sent)
	}
	took, cpu := time.Since(start), cpuTime()-cpu0
	r := newResult(c, took, cpu, c.Count)
	r.LatencyUS = summarize(samples)
	return r, nil
}

func summarize(samples []time.Duration) *latency {
	slices.Sort(samples)
	var sum time.Duration
	for _, d := range samples {
		sum += d
	}
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	rank := func(q float64) float64 { // nearest rank
		return us(samples[int(math.Ceil(q*float64(len(samples))))-1])
	}
	return &latency{us(sum) / float64(len(samples)), rank(.5), rank(.9), rank(.99), rank(.999), rank(1)}
}

// connect opens n connections that never reconnect, so that a disconnection is visible.
func connect(url string, n int) ([]*nats.Conn, error) {
	onCut := func(nc *nats.Conn, _ error) { log.Print("connection cut: ", nc.LastError()) }
	conns := make([]*nats.Conn, n)
	for i := range conns {
		var err error
		if conns[i], err = nats.Connect(url, nats.NoReconnect(), nats.DisconnectErrHandler(onCut)); err != nil {
			return nil, fmt.Errorf("%s: %w", url, err)
		}
	}
	return conns, nil
}

// listen subscribes without a limit on pending messages in the client. When it
// returns, the server has registered the subscription.
func listen(nc *nats.Conn, handle nats.MsgHandler) error {
	sub, err := nc.Subscribe(subject, handle)
	if err != nil {
		return err
	}
	return errors.Join(sub.SetPendingLimits(-1, -1), nc.Flush())
}

func newResult(c config, took, cpu time.Duration, published int64) *result {
	r := &result{System: "nats", config: c, Seconds: took.Seconds(), ClientCPU: cpu.Seconds()}
	if r.Seconds > 0 {
		r.PublishedPerS = float64(published) / r.Seconds
	}
	return r
}

// cpuTime returns the user and system time of this process so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // cannot fail for the calling process
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
