// Client kafka-go of Segment: pure Go, mostly the lowest versions of each request.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"compat/suite"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"
)

type client struct {
	suite.Missing
	address   string
	transport *kafka.Transport
	dialer    kafka.Dialer
	api       *kafka.Client
}

func main() {
	facts := suite.Facts{Name: "kafka-go", Version: "github.com/segmentio/kafka-go", New: newClient, NoMetadata: true, EmptyIsNull: true}
	facts.Excused = map[string]string{
		"group_cooperative": "the library has no cooperative assignor",
		"group_static":      "the library's reader has no static members",
		"group_server_side": "the library has no server-side groups",
		"idempotent":        "the library's writer is not idempotent",
	}
	suite.Main(facts)
}

func newClient(address string, security *suite.Security) suite.Client {
	c := &client{address: address, transport: &kafka.Transport{MetadataTTL: 100 * time.Millisecond}}
	c.dialer = kafka.Dialer{Timeout: 10 * time.Second}
	if security != nil {
		var mechanism sasl.Mechanism = plain.Mechanism{Username: security.User, Password: security.Password}
		var err error
		switch security.Mechanism {
		case "SCRAM-SHA-256":
			mechanism, err = scram.Mechanism(scram.SHA256, security.User, security.Password)
		case "SCRAM-SHA-512":
			mechanism, err = scram.Mechanism(scram.SHA512, security.User, security.Password)
		}
		if err != nil {
			panic(err)
		}
		c.transport.SASL, c.dialer.SASLMechanism = mechanism, mechanism
		if security.CA != "" {
			pem, err := os.ReadFile(security.CA)
			if err != nil {
				panic(err)
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(pem)
			c.transport.TLS, c.dialer.TLS = &tls.Config{RootCAs: roots, ServerName: "localhost"}, &tls.Config{RootCAs: roots, ServerName: "localhost"}
		}
	}
	c.api = &kafka.Client{Addr: kafka.TCP(address), Timeout: suite.WaitTime, Transport: c.transport}
	return c
}

func (c *client) Close() { c.transport.CloseIdleConnections() }

// names has the protocol's names of errors whose titles are not these names in another spelling.
var names = map[kafka.Error]string{
	kafka.MessageSizeTooLarge:    "MESSAGE_TOO_LARGE",
	kafka.InvalidTopic:           "INVALID_TOPIC_EXCEPTION",
	kafka.GroupIdNotFound:        "GROUP_ID_NOT_FOUND",
	kafka.TopicAlreadyExists:     "TOPIC_ALREADY_EXISTS",
	kafka.InvalidConfiguration:   "INVALID_CONFIG",
	kafka.InvalidPartitionNumber: "INVALID_PARTITIONS",
}

// named converts the library's errors to the protocol's names.
func named(errs ...error) error {
	for _, err := range errs {
		var many kafka.WriteErrors
		if errors.As(err, &many) {
			for _, one := range many {
				if one != nil {
					err = one
				}
			}
		}
		var known kafka.Error
		var large kafka.MessageTooLargeError
		switch {
		case err == nil:
		case errors.As(err, &large):
			return suite.Refused("MESSAGE_TOO_LARGE")
		case errors.As(err, &known) && names[known] != "":
			return suite.Refused(names[known])
		case errors.As(err, &known):
			return suite.Refused(strings.ToUpper(strings.ReplaceAll(known.Title(), " ", "_")))
		default:
			return err
		}
	}
	return nil
}

func within() context.Context {
	ctx, _ := context.WithTimeout(context.Background(), suite.WaitTime)
	return ctx
}

func (c *client) Produce(topic string, records []suite.Record, codec string, _ bool) ([]int64, error) {
	codecs := map[string]kafka.Compression{"gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4, "zstd": kafka.Zstd}
	var lock sync.Mutex
	var offsets []int64
	writer := kafka.Writer{
		Addr: kafka.TCP(c.address), Topic: topic, RequiredAcks: kafka.RequireAll, BatchBytes: 2_000_000, Compression: codecs[codec],
		BatchTimeout: 5 * time.Millisecond, Transport: c.transport, AllowAutoTopicCreation: true,
		Balancer: kafka.BalancerFunc(func(m kafka.Message, _ ...int) int { return m.WriterData.(int) }),
		Completion: func(messages []kafka.Message, err error) {
			lock.Lock()
			defer lock.Unlock()
			for _, m := range messages {
				offsets = append(offsets, m.Offset)
			}
		},
	}
	var messages []kafka.Message
	for _, r := range records {
		m := kafka.Message{Key: r.Key, Value: r.Value, WriterData: int(r.Partition)}
		if r.TimeMs != 0 {
			m.Time = time.UnixMilli(r.TimeMs)
		}
		for _, h := range r.Headers {
			m.Headers = append(m.Headers, kafka.Header{Key: h.Key, Value: h.Value})
		}
		messages = append(messages, m)
	}
	err := writer.WriteMessages(within(), messages...)
	// The library leaves waiting for the creation of a topic to its caller.
	for end := time.Now().Add(suite.WaitTime); errors.Is(err, kafka.UnknownTopicOrPartition) && time.Now().Before(end); {
		time.Sleep(50 * time.Millisecond)
		err = writer.WriteMessages(within(), messages...)
	}
	// Close waits for the calls of Completion.
	return offsets, named(err, writer.Close())
}

func record(m kafka.Message) suite.Record {
	r := suite.Record{Key: m.Key, Value: m.Value, TimeMs: m.Time.UnixMilli(), Partition: int32(m.Partition), Offset: m.Offset}
	for _, h := range m.Headers {
		r.Headers = append(r.Headers, suite.Header{Key: h.Key, Value: h.Value})
	}
	return r
}

// receive reads records until none has arrived for the time quiet.
func receive(reader *kafka.Reader, quiet time.Duration) (found []suite.Record) {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), quiet)
		m, err := reader.FetchMessage(ctx)
		cancel()
		if err != nil {
			return found
		}
		found = append(found, record(m))
	}
}

func (c *client) Read(topic string, count int, partition int32, start int64, committed bool) ([]suite.Record, error) {
	config := kafka.ReaderConfig{
		Brokers: []string{c.address}, Topic: topic, Partition: int(partition), Dialer: &c.dialer, MaxWait: 200 * time.Millisecond,
		MinBytes: 1, MaxBytes: 10_000_000,
	}
	if committed {
		config.IsolationLevel = kafka.ReadCommitted
	}
	reader := kafka.NewReader(config)
	defer reader.Close()
	if err := reader.SetOffset(start); err != nil {
		return nil, named(err)
	}
	var found []suite.Record
	suite.Until("records", func() bool {
		found = append(found, receive(reader, suite.QuietTime)...)
		return len(found) >= count
	})
	return found, nil
}

func (c *client) offset(topic string, request kafka.OffsetRequest) (kafka.PartitionOffsets, error) {
	response, err := c.api.ListOffsets(within(), &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{topic: {request}}})
	if err != nil {
		return kafka.PartitionOffsets{}, named(err)
	}
	return response.Topics[topic][0], named(response.Topics[topic][0].Error)
}

func (c *client) Offsets(topic string, partition int32) (int64, int64, error) {
	first, err := c.offset(topic, kafka.FirstOffsetOf(int(partition)))
	if err != nil {
		return 0, 0, err
	}
	next, err := c.offset(topic, kafka.LastOffsetOf(int(partition)))
	return first.FirstOffset, next.LastOffset, err
}

func (c *client) OffsetAt(topic string, partition int32, timeMs int64) (int64, error) {
	found, err := c.offset(topic, kafka.TimeOffsetOf(int(partition), time.UnixMilli(timeMs)))
	for offset := range found.Offsets {
		return offset, err
	}
	return suite.Latest, err
}

type member struct {
	*client
	topic, group, id string
	reader           *kafka.Reader
}

var members atomic.Int64

func (c *client) Member(topic, group string, _ suite.GroupOptions) (suite.Member, error) {
	dialer := c.dialer
	// The reader does not report its assignment. The client id identifies its member in the group's description.
	dialer.ClientID = fmt.Sprintf("member-%d", members.Add(1))
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{c.address}, GroupID: group, Topic: topic, Dialer: &dialer, StartOffset: kafka.FirstOffset,
		HeartbeatInterval: 500 * time.Millisecond, MaxWait: 200 * time.Millisecond, MinBytes: 1, MaxBytes: 10_000_000,
		GroupBalancers: []kafka.GroupBalancer{kafka.RangeGroupBalancer{}}, JoinGroupBackoff: 200 * time.Millisecond,
	})
	return &member{c, topic, group, dialer.ClientID, reader}, nil
}

func (m *member) Poll() []suite.Record { return receive(m.reader, 100*time.Millisecond) }

func (m *member) Assignment() (partitions []int32) {
	response, err := m.api.DescribeGroups(within(), &kafka.DescribeGroupsRequest{GroupIDs: []string{m.group}})
	if err != nil {
		return nil
	}
	for _, other := range response.Groups[0].Members {
		if other.ClientID == m.id {
			partitions = numbers(other.MemberAssignments.Topics)
		}
	}
	return partitions
}

func numbers(topics []kafka.GroupMemberTopic) (partitions []int32) {
	for _, topic := range topics {
		for _, p := range topic.Partitions {
			partitions = append(partitions, int32(p))
		}
	}
	return partitions
}

func (m *member) Commit(offsets map[int32]suite.Committed) error {
	var messages []kafka.Message
	for p, at := range offsets {
		// Committing a record commits the next offset.
		messages = append(messages, kafka.Message{Topic: m.topic, Partition: int(p), Offset: at.Offset - 1})
	}
	return named(m.reader.CommitMessages(within(), messages...))
}

func (m *member) Committed(partition int32) (suite.Committed, error) {
	found, err := m.GroupOffsets(m.group, m.topic, []int32{partition})
	return suite.Committed{Offset: found[partition]}, err
}

func (m *member) Close() { m.reader.Close() }

func (c *client) Login() error {
	_, err := c.api.Metadata(within(), &kafka.MetadataRequest{Topics: []string{}})
	return named(err)
}

func (c *client) Unknown(topic string) error {
	response, err := c.api.Metadata(within(), &kafka.MetadataRequest{Topics: []string{topic}})
	if err != nil {
		return named(err)
	}
	return named(response.Topics[0].Error)
}

func (c *client) CreateTopic(topic string, partitions int32, configs map[string]string) error {
	config := kafka.TopicConfig{Topic: topic, NumPartitions: int(partitions), ReplicationFactor: 1}
	for name, value := range configs {
		config.ConfigEntries = append(config.ConfigEntries, kafka.ConfigEntry{ConfigName: name, ConfigValue: value})
	}
	response, err := c.api.CreateTopics(within(), &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{config}})
	if err != nil || response.Errors[topic] != nil {
		return named(err, response.Errors[topic])
	}
	suite.Until("the topic is known", func() bool {
		found, err := c.Topics()
		return err == nil && found[topic] == int(partitions)
	})
	return nil
}

func (c *client) DeleteTopic(topic string) error {
	response, err := c.api.DeleteTopics(within(), &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	if err != nil {
		return named(err)
	}
	return named(response.Errors[topic])
}

func (c *client) Topics() (map[string]int, error) {
	response, err := c.api.Metadata(within(), &kafka.MetadataRequest{})
	if err != nil {
		return nil, named(err)
	}
	topics := map[string]int{}
	for _, topic := range response.Topics {
		topics[topic.Name] = len(topic.Partitions)
	}
	return topics, nil
}

func (c *client) AddPartitions(topic string, total int) error {
	wanted := []kafka.TopicPartitionsConfig{{Name: topic, Count: int32(total)}}
	response, err := c.api.CreatePartitions(within(), &kafka.CreatePartitionsRequest{Topics: wanted})
	if err != nil {
		return named(err)
	}
	return named(response.Errors[topic])
}

func (c *client) Configs(topic string) (map[string]string, error) {
	resources := []kafka.DescribeConfigRequestResource{{ResourceType: kafka.ResourceTypeTopic, ResourceName: topic}}
	response, err := c.api.DescribeConfigs(within(), &kafka.DescribeConfigsRequest{Resources: resources})
	if err != nil {
		return nil, named(err)
	}
	configs := map[string]string{}
	for _, entry := range response.Resources[0].ConfigEntries {
		configs[entry.ConfigName] = entry.ConfigValue
	}
	return configs, named(response.Resources[0].Error)
}

func (c *client) SetConfig(topic, name string, value *string) error {
	change := kafka.IncrementalAlterConfigsRequestConfig{Name: name, ConfigOperation: kafka.ConfigOperationDelete}
	if value != nil {
		change.Value, change.ConfigOperation = *value, kafka.ConfigOperationSet
	}
	response, err := c.api.IncrementalAlterConfigs(within(), &kafka.IncrementalAlterConfigsRequest{
		Resources: []kafka.IncrementalAlterConfigsRequestResource{{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: topic, Configs: []kafka.IncrementalAlterConfigsRequestConfig{change},
		}},
	})
	if err != nil {
		return named(err)
	}
	return named(response.Resources[0].Error)
}

func (c *client) Groups() ([]string, error) {
	response, err := c.api.ListGroups(within(), &kafka.ListGroupsRequest{})
	if err != nil {
		return nil, named(err)
	}
	var groups []string
	for _, group := range response.Groups {
		groups = append(groups, group.GroupID)
	}
	return groups, named(response.Error)
}

func (c *client) DescribeGroup(group string) (suite.Group, error) {
	response, err := c.api.DescribeGroups(within(), &kafka.DescribeGroupsRequest{GroupIDs: []string{group}})
	if err != nil {
		return suite.Group{}, named(err)
	}
	described := suite.Group{State: response.Groups[0].GroupState}
	for _, member := range response.Groups[0].Members {
		described.Partitions = append(described.Partitions, numbers(member.MemberAssignments.Topics))
	}
	return described, named(response.Groups[0].Error)
}

func (c *client) GroupOffsets(group, topic string, partitions []int32) (map[int32]int64, error) {
	var wanted []int
	for _, p := range partitions {
		wanted = append(wanted, int(p))
	}
	response, err := c.api.OffsetFetch(within(), &kafka.OffsetFetchRequest{GroupID: group, Topics: map[string][]int{topic: wanted}})
	if err != nil {
		return nil, named(err)
	}
	offsets := map[int32]int64{}
	for _, at := range response.Topics[topic] {
		if at.CommittedOffset >= 0 {
			offsets[int32(at.Partition)] = at.CommittedOffset
		}
	}
	return offsets, named(response.Error)
}

func (c *client) SetGroupOffset(group, topic string, partition int32, offset int64) error {
	response, err := c.api.OffsetCommit(within(), &kafka.OffsetCommitRequest{
		GroupID: group, GenerationID: -1,
		Topics: map[string][]kafka.OffsetCommit{topic: {{Partition: int(partition), Offset: offset}}},
	})
	if err != nil {
		return named(err)
	}
	return named(response.Topics[topic][0].Error)
}

func (c *client) DeleteGroupOffset(group, topic string, partition int32) error {
	response, err := c.api.OffsetDelete(within(), &kafka.OffsetDeleteRequest{
		GroupID: group, Topics: map[string][]int{topic: {int(partition)}},
	})
	if err != nil {
		return named(err)
	}
	return named(response.Error, response.Topics[topic][0].Error)
}

func (c *client) DeleteGroup(group string) error {
	response, err := c.api.DeleteGroups(within(), &kafka.DeleteGroupsRequest{GroupIDs: []string{group}})
	if err != nil {
		return named(err)
	}
	return named(response.Errors[group])
}

func (c *client) Cluster() (suite.Cluster, error) {
	response, err := c.api.Metadata(within(), &kafka.MetadataRequest{})
	if err != nil {
		return suite.Cluster{}, named(err)
	}
	found := suite.Cluster{ID: response.ClusterID, Controller: int32(response.Controller.ID)}
	for _, broker := range response.Brokers {
		found.Nodes = append(found.Nodes, int32(broker.ID))
	}
	return found, nil
}
