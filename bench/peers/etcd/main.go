// Command etcd-load puts entries into an etcd cluster with a fixed number of
// clients, each with one put in flight on its own connection to the node that
// leads, and reports the rate and the latencies.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

const (
	limit  = 20 * time.Second // for a single request
	warmUp = 1000             // puts that are not counted
)

type config struct {
	Clients    int `json:"clients"`
	Keys       int `json:"keys"`
	Puts       int `json:"puts"`
	ValueBytes int `json:"value_bytes"`
}

// latency holds the distribution of the samples, in microseconds.
type latency struct {
	Count int     `json:"count"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p999"`
	Max   float64 `json:"max"`
}

type result struct {
	System  string `json:"system"`
	Version string `json:"version"`
	config
	ProducedSeconds float64 `json:"produced_seconds"`
	ProducedPerS    float64 `json:"produced_per_s"`
	ProducerUS      latency `json:"producer_us"`
}

func main() {
	var c config
	endpoints := flag.String("endpoints", "http://127.0.0.1:2379", "client `URLs` of the nodes, separated by commas")
	flag.IntVar(&c.Clients, "clients", 1, "number of clients, each with one put in flight")
	flag.IntVar(&c.Keys, "keys", 1024, "number of keys, used in turn")
	flag.IntVar(&c.Puts, "puts", 10_000, "total number of puts")
	flag.IntVar(&c.ValueBytes, "value-bytes", 256, "bytes of a value")
	flag.Parse()

	log.SetFlags(0)
	log.SetPrefix("etcd-load: ")
	if flag.NArg() > 0 {
		log.Fatalf("unexpected argument %q", flag.Arg(0))
	}
	if c.Clients < 1 || c.Keys < 1 || c.Puts < 1 || c.ValueBytes < 1 {
		log.Fatal("-clients, -keys, -puts and -value-bytes must be 1 or more")
	}
	r, err := run(c, strings.Split(*endpoints, ","))
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		log.Fatal(err)
	}
}

func run(c config, endpoints []string) (*result, error) {
	leader, version, err := leaderOf(endpoints)
	if err != nil {
		return nil, err
	}
	clients := make([]*clientv3.Client, c.Clients)
	for i := range clients {
		if clients[i], err = connect(leader); err != nil {
			return nil, err
		}
		defer clients[i].Close()
	}
	if _, _, err := put(c, clients, warmUp); err != nil {
		return nil, err
	}
	samples, took, err := put(c, clients, c.Puts)
	if err != nil {
		return nil, err
	}
	return &result{
		System: "etcd", Version: version, config: c, ProducedSeconds: took.Seconds(),
		ProducedPerS: float64(len(samples)) / took.Seconds(), ProducerUS: summarize(samples),
	}, nil
}

// leaderOf returns the endpoint of the node that leads, and its version.
func leaderOf(endpoints []string) (string, string, error) {
	for _, endpoint := range endpoints {
		client, err := connect(endpoint)
		if err != nil {
			return "", "", err
		}
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		status, err := client.Status(ctx, endpoint)
		cancel()
		client.Close()
		if err != nil {
			return "", "", err
		}
		if status.Leader == status.Header.MemberId {
			return endpoint, status.Version, nil
		}
	}
	return "", "", errors.New("no node leads")
}

func connect(endpoint string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: limit, Logger: zap.NewNop()})
}

// put shares this number of puts among the clients. It returns the duration of
// each and that of all together.
func put(c config, clients []*clientv3.Client, count int) ([]time.Duration, time.Duration, error) {
	value := strings.Repeat("v", c.ValueBytes)
	samples := make([]time.Duration, count)
	failures := make([]error, len(clients))
	var next atomic.Int64
	var all sync.WaitGroup
	begin := time.Now()
	for i, client := range clients {
		all.Go(func() {
			for {
				at := int(next.Add(1)) - 1
				if at >= count {
					return
				}
				ctx, cancel := context.WithTimeout(context.Background(), limit)
				sent := time.Now()
				_, err := client.Put(ctx, fmt.Sprintf("key-%08d", at%c.Keys), value)
				samples[at] = time.Since(sent)
				cancel()
				if err != nil {
					failures[i] = err
					return
				}
			}
		})
	}
	all.Wait()
	return samples, time.Since(begin), errors.Join(failures...)
}

func summarize(samples []time.Duration) latency {
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
	return latency{len(samples), mean, rank(.5), rank(.99), rank(.999), rank(1)}
}
