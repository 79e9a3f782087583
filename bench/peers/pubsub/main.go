// Command pubsub-load publishes messages and receives them with a streaming pull, with Google's own Go client, and
// reports the rates and the CPU time: see README.md.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
)

const (
	project = "load"
	// Ticks per second of user and system time in /proc: USER_HZ, which is 100 on all machines.
	ticks = 100
	limit = 5 * time.Minute
)

// phase has the figures of one half of the load. CPU times are in microseconds per message.
type phase struct {
	MessagesPerS float64 `json:"messages_per_s"`
	ServerCPU    float64 `json:"server_cpu_us"`
	ClientCPU    float64 `json:"client_cpu_us"`
}

type report struct {
	Publish    phase `json:"publish"`
	Receive    phase `json:"receive"`
	Duplicates int64 `json:"duplicates"`
}

func main() {
	messages := flag.Int("messages", 100_000, "messages")
	bodyBytes := flag.Int("body-bytes", 1024, "bytes of each message, at least 8")
	outstanding := flag.Int("outstanding", 10_000, "maximum number of messages that the subscriber holds")
	pid := flag.Int("pid", 0, "process of the server")
	flag.Parse()
	// The client looks for the address in PUBSUB_EMULATOR_HOST.
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	client, err := pubsub.NewClient(ctx, project)
	fit(err)
	name := fmt.Sprintf("load-%d", os.Getpid())
	topic, err := client.TopicAdminClient.CreateTopic(ctx, &pubsubpb.Topic{Name: "projects/" + project + "/topics/" + name})
	fit(err)
	subscription, err := client.SubscriptionAdminClient.CreateSubscription(ctx, &pubsubpb.Subscription{
		Name: "projects/" + project + "/subscriptions/" + name, Topic: topic.Name, AckDeadlineSeconds: 60,
	})
	fit(err)
	var r report
	r.Publish = measured(*pid, *messages, func() { publish(ctx, client.Publisher(topic.Name), *messages, *bodyBytes) })
	r.Receive = measured(*pid, *messages, func() {
		r.Duplicates = receive(ctx, client.Subscriber(subscription.Name), *messages, *bodyBytes, *outstanding)
	})
	fit(json.NewEncoder(os.Stdout).Encode(r))
}

func fit(err error) {
	if err != nil {
		log.Fatalf("pubsub-load: %v", err)
	}
}

func measured(pid, messages int, work func()) phase {
	begin, server, client := time.Now(), serverCPU(pid), clientCPU()
	work()
	took, n := time.Since(begin), float64(messages)
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / n }
	return phase{n / took.Seconds(), us(serverCPU(pid) - server), us(clientCPU() - client)}
}

// publish sends numbered messages and waits until all are accepted.
func publish(ctx context.Context, publisher *pubsub.Publisher, messages, bodyBytes int) {
	results := make([]*pubsub.PublishResult, messages)
	for i := range results {
		body := make([]byte, bodyBytes)
		binary.BigEndian.PutUint64(body, uint64(i))
		results[i] = publisher.Publish(ctx, &pubsub.Message{Data: body})
	}
	publisher.Stop()
	for _, result := range results {
		_, err := result.Get(ctx)
		fit(err)
	}
}

// receive returns when each message has been received and acknowledged. It returns the number of duplicates.
func receive(ctx context.Context, subscriber *pubsub.Subscriber, messages, bodyBytes, outstanding int) int64 {
	subscriber.ReceiveSettings.MaxOutstandingMessages = outstanding
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	seen := make([]atomic.Bool, messages)
	var found, duplicates atomic.Int64
	fit(subscriber.Receive(ctx, func(_ context.Context, message *pubsub.Message) {
		number := binary.BigEndian.Uint64(message.Data)
		if len(message.Data) != bodyBytes || number >= uint64(messages) {
			log.Fatalf("pubsub-load: a message of %d bytes with the number %d was not sent", len(message.Data), number)
		}
		message.Ack()
		if seen[number].Swap(true) {
			duplicates.Add(1)
		} else if found.Add(1) == int64(messages) {
			stop()
		}
	}))
	if found.Load() != int64(messages) {
		log.Fatalf("pubsub-load: %d of %d messages arrived", found.Load(), messages)
	}
	return duplicates.Load()
}

// serverCPU returns the user and system time of a process so far.
func serverCPU(pid int) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	fit(err)
	// The name of the command may contain spaces.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var sum int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		fit(err)
		sum += n
	}
	return time.Duration(sum) * time.Second / ticks
}

// clientCPU returns the user and system time of this process so far.
func clientCPU() time.Duration {
	var usage syscall.Rusage
	fit(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
