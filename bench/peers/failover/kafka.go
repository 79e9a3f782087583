package main

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A kafkaLog is a topic of Kafka, or of a system with its protocol. The client
// has the defaults of franz-go, except that it looks for another leader sooner.
type kafkaLog struct {
	servers []string
	client  *kgo.Client
	admin   *kadm.Client
}

func openKafka(servers []string) (replicated, error) {
	soon := func(int) time.Duration { return backoff }
	client, err := kgo.NewClient(
		kgo.SeedBrokers(servers...), kgo.MetadataMinAge(fresh), kgo.RetryBackoffFn(soon),
		kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerLinger(0),
	)
	if err != nil {
		return nil, err
	}
	admin := kadm.NewClient(client)
	if _, err := admin.CreateTopic(context.Background(), 1, replicas, nil, name); err != nil {
		return nil, err
	}
	return &kafkaLog{servers, client, admin}, nil
}

// append waits without a limit: the client itself sends again, with the number
// by which the servers know a record that they have.
func (k *kafkaLog) append(_ context.Context, record string) error {
	return k.client.ProduceSync(context.Background(), &kgo.Record{Topic: name, Value: []byte(record)}).FirstErr()
}

func (k *kafkaLog) topic(ctx context.Context) (kadm.PartitionDetail, kadm.BrokerDetails, error) {
	found, err := k.admin.Metadata(ctx, name)
	if err != nil {
		return kadm.PartitionDetail{}, nil, err
	}
	partition, ok := found.Topics[name].Partitions[0]
	if !ok {
		return partition, nil, fmt.Errorf("no partition of %s", name)
	}
	return partition, found.Brokers, partition.Err
}

func (k *kafkaLog) leader(ctx context.Context) (string, error) {
	partition, brokers, err := k.topic(ctx)
	if err != nil {
		return "", err
	}
	for _, broker := range brokers {
		if broker.NodeID == partition.Leader {
			return fmt.Sprintf("%s:%d", broker.Host, broker.Port), nil
		}
	}
	return "", fmt.Errorf("no broker %d", partition.Leader)
}

func (k *kafkaLog) isWhole(ctx context.Context) (bool, error) {
	partition, brokers, err := k.topic(ctx)
	return err == nil && len(partition.ISR) == replicas && len(brokers) == replicas, err
}

func (k *kafkaLog) read(ctx context.Context) ([]string, error) {
	ends, err := k.admin.ListEndOffsets(ctx, name)
	if err != nil {
		return nil, err
	}
	end, _ := ends.Lookup(name, 0)
	reader, err := kgo.NewClient(
		kgo.SeedBrokers(k.servers...), kgo.ConsumeTopics(name), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	var records []string
	for next := int64(0); next < end.Offset; {
		fetches := reader.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			records = append(records, string(r.Value))
			next = r.Offset + 1
		})
	}
	return records, nil
}
