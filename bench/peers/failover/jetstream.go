package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A jetStreamLog is a stream of NATS. The client has the defaults of nats.go,
// except that it connects again sooner and without a limit.
type jetStreamLog struct {
	js     jetstream.JetStream
	stream jetstream.Stream
}

func openJetStream(servers []string) (replicated, error) {
	nc, err := nats.Connect(strings.Join(servers, ","), nats.MaxReconnects(-1), nats.ReconnectWait(backoff))
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	settings := jetstream.StreamConfig{Name: name, Subjects: []string{name}, Replicas: replicas}
	stream, err := js.CreateStream(context.Background(), settings)
	// A new cluster may not know all of its servers yet.
	for begin := time.Now(); err != nil && time.Since(begin) < reading; {
		time.Sleep(again)
		stream, err = js.CreateStream(context.Background(), settings)
	}
	if err != nil {
		return nil, err
	}
	return &jetStreamLog{js, stream}, nil
}

// append gives the record its number as an id, by which the servers know a
// record that they have.
func (j *jetStreamLog) append(ctx context.Context, record string) error {
	_, err := j.js.Publish(ctx, name, []byte(record), jetstream.WithMsgID(record))
	return err
}

func (j *jetStreamLog) leader(ctx context.Context) (string, error) {
	info, err := j.stream.Info(ctx)
	if err != nil {
		return "", err
	}
	if info.Cluster == nil || info.Cluster.Leader == "" {
		return "", errors.New("no server leads")
	}
	return info.Cluster.Leader, nil
}

func (j *jetStreamLog) isWhole(ctx context.Context) (bool, error) {
	info, err := j.stream.Info(ctx)
	if err != nil || info.Cluster == nil {
		return false, err
	}
	whole := len(info.Cluster.Replicas) == replicas-1
	for _, replica := range info.Cluster.Replicas {
		whole = whole && replica.Current && !replica.Offline
	}
	return whole, nil
}

func (j *jetStreamLog) read(ctx context.Context) ([]string, error) {
	info, err := j.stream.Info(ctx)
	if err != nil {
		return nil, err
	}
	consumer, err := j.stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return nil, err
	}
	defer messages.Stop()
	var records []string
	for uint64(len(records)) < info.State.Msgs {
		message, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return nil, err
		}
		records = append(records, string(message.Data()))
	}
	return records, nil
}
