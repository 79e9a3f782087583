// Client sarama: the older of the pure Go clients.
package main

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"compat/suite"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

type client struct {
	suite.Missing
	address  string
	security *suite.Security
}

func main() {
	suite.Main(suite.Facts{Name: "sarama", Version: "github.com/IBM/sarama", New: func(address string, security *suite.Security) suite.Client {
		return &client{address: address, security: security}
	}})
}

var names = map[sarama.KError]string{
	sarama.ErrOffsetOutOfRange:         "OFFSET_OUT_OF_RANGE",
	sarama.ErrUnknownTopicOrPartition:  "UNKNOWN_TOPIC_OR_PARTITION",
	sarama.ErrMessageSizeTooLarge:      "MESSAGE_TOO_LARGE",
	sarama.ErrInvalidTopic:             "INVALID_TOPIC_EXCEPTION",
	sarama.ErrTopicAlreadyExists:       "TOPIC_ALREADY_EXISTS",
	sarama.ErrInvalidPartitions:        "INVALID_PARTITIONS",
	sarama.ErrInvalidConfig:            "INVALID_CONFIG",
	sarama.ErrGroupIDNotFound:          "GROUP_ID_NOT_FOUND",
	sarama.ErrInvalidProducerEpoch:     "INVALID_PRODUCER_EPOCH",
	sarama.ErrProducerFenced:           "PRODUCER_FENCED",
	sarama.ErrSASLAuthenticationFailed: "SASL_AUTHENTICATION_FAILED",
}

// named converts the library's errors to the protocol's names.
func named(err error) error {
	var undelivered sarama.ProducerErrors
	if errors.As(err, &undelivered) {
		err = undelivered[0].Err
	}
	var known sarama.KError
	if errors.As(err, &known) && names[known] != "" {
		return suite.Refused(names[known])
	}
	// The library keeps only the text of the error that ended a connection.
	if err != nil && strings.Contains(err.Error(), "SASL Authentication failed") {
		return suite.Refused("SASL_AUTHENTICATION_FAILED")
	}
	return err
}

type conversation struct {
	hash scram.HashGeneratorFcn
	*scram.ClientConversation
}

func (c *conversation) Begin(user, password, authorization string) error {
	client, err := c.hash.NewClient(user, password, authorization)
	if err == nil {
		c.ClientConversation = client.NewConversation()
	}
	return err
}

func (c *client) config() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.MaxMessageBytes = 2_000_000
	config.Metadata.AllowAutoTopicCreation = false
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	if s := c.security; s != nil {
		config.Metadata.Retry.Max = 0
		config.Net.SASL.Enable, config.Net.SASL.User, config.Net.SASL.Password = true, s.User, s.Password
		config.Net.SASL.Mechanism = sarama.SASLMechanism(s.Mechanism)
		hash := scram.HashGeneratorFcn(sha256.New)
		if s.Mechanism == sarama.SASLTypeSCRAMSHA512 {
			hash = sha512.New
		}
		config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &conversation{hash: hash} }
		if s.CA != "" {
			roots := x509.NewCertPool()
			if pem, err := os.ReadFile(s.CA); err == nil {
				roots.AppendCertsFromPEM(pem)
			}
			config.Net.TLS.Enable, config.Net.TLS.Config = true, &tls.Config{RootCAs: roots}
		}
	}
	return config
}

func (c *client) addresses() []string { return []string{c.address} }

func deliver(producer sarama.SyncProducer, topic string, records []suite.Record) ([]int64, error) {
	var sent []*sarama.ProducerMessage
	for _, r := range records {
		message := &sarama.ProducerMessage{Topic: topic, Partition: r.Partition}
		if r.Key != nil {
			message.Key = sarama.ByteEncoder(r.Key)
		}
		if r.Value != nil {
			message.Value = sarama.ByteEncoder(r.Value)
		}
		if r.TimeMs != 0 {
			message.Timestamp = time.UnixMilli(r.TimeMs)
		}
		for _, h := range r.Headers {
			message.Headers = append(message.Headers, sarama.RecordHeader{Key: []byte(h.Key), Value: h.Value})
		}
		sent = append(sent, message)
	}
	err := producer.SendMessages(sent)
	var offsets []int64
	for _, message := range sent {
		offsets = append(offsets, message.Offset)
	}
	return offsets, named(err)
}

func (c *client) Produce(topic string, records []suite.Record, codec string, idempotent bool) ([]int64, error) {
	config := c.config()
	config.Metadata.AllowAutoTopicCreation = true
	if err := config.Producer.Compression.UnmarshalText([]byte(codec)); err != nil {
		return nil, err
	}
	if idempotent {
		config.Producer.Idempotent, config.Net.MaxOpenRequests = true, 1
	}
	producer, err := sarama.NewSyncProducer(c.addresses(), config)
	if err != nil {
		return nil, named(err)
	}
	defer producer.Close()
	return deliver(producer, topic, records)
}

func record(m *sarama.ConsumerMessage) suite.Record {
	r := suite.Record{Key: m.Key, Value: m.Value, TimeMs: m.Timestamp.UnixMilli(), Partition: m.Partition, Offset: m.Offset}
	for _, h := range m.Headers {
		r.Headers = append(r.Headers, suite.Header{Key: string(h.Key), Value: h.Value})
	}
	return r
}

// receive reads records until none has arrived for the time quiet.
func receive(messages <-chan *sarama.ConsumerMessage, quiet time.Duration) (found []suite.Record) {
	for {
		select {
		case m, is := <-messages:
			if !is {
				return found
			}
			found = append(found, record(m))
		case <-time.After(quiet):
			return found
		}
	}
}

func (c *client) Read(topic string, count int, partition int32, start int64, committed bool) ([]suite.Record, error) {
	config := c.config()
	if committed {
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	consumer, err := sarama.NewConsumer(c.addresses(), config)
	if err != nil {
		return nil, named(err)
	}
	defer consumer.Close()
	messages, err := consumer.ConsumePartition(topic, partition, start)
	if err != nil {
		return nil, named(err)
	}
	defer messages.Close()
	var found []suite.Record
	suite.Until("records", func() bool {
		found = append(found, receive(messages.Messages(), suite.QuietTime)...)
		return len(found) >= count
	})
	return found, nil
}

// ask opens a client for the duration of one query.
func (c *client) ask(question func(sarama.Client) error) error {
	one, err := sarama.NewClient(c.addresses(), c.config())
	if err != nil {
		return named(err)
	}
	defer one.Close()
	return named(question(one))
}

func (c *client) Offsets(topic string, partition int32) (first, next int64, err error) {
	err = c.ask(func(one sarama.Client) (err error) {
		if first, err = one.GetOffset(topic, partition, sarama.OffsetOldest); err == nil {
			next, err = one.GetOffset(topic, partition, sarama.OffsetNewest)
		}
		return err
	})
	return first, next, err
}

func (c *client) OffsetAt(topic string, partition int32, timeMs int64) (found int64, err error) {
	err = c.ask(func(one sarama.Client) (err error) {
		found, err = one.GetOffset(topic, partition, timeMs)
		return err
	})
	return found, err
}

type member struct {
	*client
	topic, name string
	group       sarama.ConsumerGroup
	messages    chan *sarama.ConsumerMessage
	stop        context.CancelFunc
	stopped     chan struct{}
	lock        sync.Mutex
	session     sarama.ConsumerGroupSession
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error { return m.set(session) }
func (m *member) Cleanup(_ sarama.ConsumerGroupSession) error     { return m.set(nil) }

func (m *member) set(session sarama.ConsumerGroupSession) error {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.session = session
	return nil
}

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		select {
		case m.messages <- message:
		case <-session.Context().Done():
			return nil
		}
	}
	return nil
}

func (c *client) Member(topic, group string, options suite.GroupOptions) (suite.Member, error) {
	if options.ServerSide {
		return nil, suite.Skip("the library has no server-side groups")
	}
	config := c.config()
	config.Consumer.Group.InstanceId = options.Instance
	if options.Cooperative {
		config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyCooperativeSticky()}
	}
	joined, err := sarama.NewConsumerGroup(c.addresses(), group, config)
	if err != nil {
		return nil, named(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	m := &member{client: c, topic: topic, name: group, group: joined, messages: make(chan *sarama.ConsumerMessage), stop: stop, stopped: make(chan struct{})}
	go func() {
		defer close(m.stopped)
		for ctx.Err() == nil {
			if joined.Consume(ctx, []string{topic}, m) != nil {
				time.Sleep(100 * time.Millisecond)
			}
		}
	}()
	return m, nil
}

func (m *member) Poll() []suite.Record { return receive(m.messages, 100*time.Millisecond) }

func (m *member) current() sarama.ConsumerGroupSession {
	m.lock.Lock()
	defer m.lock.Unlock()
	return m.session
}

func (m *member) Assignment() []int32 {
	if session := m.current(); session != nil {
		return slices.Clone(session.Claims()[m.topic])
	}
	return nil
}

func (m *member) Commit(offsets map[int32]suite.Committed) error {
	session := m.current()
	if session == nil {
		return errors.New("a rebalance is going on")
	}
	for p, at := range offsets {
		session.MarkOffset(m.topic, p, at.Offset, at.Metadata)
	}
	session.Commit()
	return nil
}

func (m *member) Committed(partition int32) (suite.Committed, error) {
	var at suite.Committed
	err := m.admin(func(admin sarama.ClusterAdmin) error {
		found, err := admin.ListConsumerGroupOffsets(m.name, map[string][]int32{m.topic: {partition}})
		if err == nil {
			block := found.GetBlock(m.topic, partition)
			at = suite.Committed{Offset: block.Offset, Metadata: block.Metadata}
		}
		return err
	})
	return at, err
}

func (m *member) Close() {
	m.stop()
	<-m.stopped
	m.group.Close()
}

type transaction struct{ producer sarama.SyncProducer }

func (c *client) Transaction(id string) (suite.Transaction, error) {
	config := c.config()
	config.Producer.Transaction.ID, config.Producer.Idempotent, config.Net.MaxOpenRequests = id, true, 1
	producer, err := sarama.NewSyncProducer(c.addresses(), config)
	return &transaction{producer}, named(err)
}

func (t *transaction) Begin() error { return named(t.producer.BeginTxn()) }
func (t *transaction) Send(topic string, records []suite.Record) error {
	_, err := deliver(t.producer, topic, records)
	return err
}
func (t *transaction) SendOffsets(m suite.Member, topic string, offsets map[int32]int64) error {
	at := map[string][]*sarama.PartitionOffsetMetadata{}
	for p, offset := range offsets {
		at[topic] = append(at[topic], &sarama.PartitionOffsetMetadata{Partition: p, Offset: offset})
	}
	return named(t.producer.AddOffsetsToTxn(at, m.(*member).name))
}
func (t *transaction) Commit() error { return named(t.producer.CommitTxn()) }
func (t *transaction) Abort() error  { return named(t.producer.AbortTxn()) }
func (t *transaction) Close()        { t.producer.Close() }

func (c *client) Login() error { return c.ask(func(sarama.Client) error { return nil }) }

func (c *client) Unknown(topic string) error {
	return c.ask(func(one sarama.Client) error {
		_, err := one.Partitions(topic)
		return err
	})
}

func (c *client) admin(call func(sarama.ClusterAdmin) error) error {
	admin, err := sarama.NewClusterAdmin(c.addresses(), c.config())
	if err != nil {
		return named(err)
	}
	defer admin.Close()
	return named(call(admin))
}

func (c *client) CreateTopic(topic string, partitions int32, configs map[string]string) error {
	detail := sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1, ConfigEntries: map[string]*string{}}
	for name, value := range configs {
		detail.ConfigEntries[name] = &value
	}
	return c.admin(func(admin sarama.ClusterAdmin) error { return admin.CreateTopic(topic, &detail, false) })
}

func (c *client) DeleteTopic(topic string) error {
	return c.admin(func(admin sarama.ClusterAdmin) error { return admin.DeleteTopic(topic) })
}

func (c *client) Topics() (map[string]int, error) {
	topics := map[string]int{}
	return topics, c.admin(func(admin sarama.ClusterAdmin) error {
		found, err := admin.ListTopics()
		for name, detail := range found {
			topics[name] = int(detail.NumPartitions)
		}
		return err
	})
}

func (c *client) AddPartitions(topic string, total int) error {
	return c.admin(func(admin sarama.ClusterAdmin) error { return admin.CreatePartitions(topic, int32(total), nil, false) })
}

func (c *client) Configs(topic string) (map[string]string, error) {
	configs := map[string]string{}
	return configs, c.admin(func(admin sarama.ClusterAdmin) error {
		found, err := admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: topic})
		for _, entry := range found {
			configs[entry.Name] = entry.Value
		}
		return err
	})
}

func (c *client) SetConfig(topic, name string, value *string) error {
	change := sarama.IncrementalAlterConfigsEntry{Operation: sarama.IncrementalAlterConfigsOperationSet, Value: value}
	if value == nil {
		change.Operation = sarama.IncrementalAlterConfigsOperationDelete
	}
	return c.admin(func(admin sarama.ClusterAdmin) error {
		return admin.IncrementalAlterConfig(sarama.TopicResource, topic, map[string]sarama.IncrementalAlterConfigsEntry{name: change}, false)
	})
}

func (c *client) DeleteRecords(topic string, partition int32, before int64) error {
	return c.admin(func(admin sarama.ClusterAdmin) error {
		return admin.DeleteRecords(topic, map[int32]int64{partition: before})
	})
}

func (c *client) Groups() (groups []string, err error) {
	err = c.admin(func(admin sarama.ClusterAdmin) error {
		found, err := admin.ListConsumerGroups()
		groups = slices.Collect(maps.Keys(found))
		return err
	})
	return groups, err
}

func (c *client) DescribeGroup(group string) (described suite.Group, err error) {
	err = c.admin(func(admin sarama.ClusterAdmin) error {
		found, err := admin.DescribeConsumerGroups([]string{group})
		if err != nil {
			return err
		}
		described.State = found[0].State
		for _, member := range found[0].Members {
			assigned, err := member.GetMemberAssignment()
			if err != nil {
				return err
			}
			for _, partitions := range assigned.Topics {
				described.Partitions = append(described.Partitions, partitions)
			}
		}
		return nil
	})
	return described, err
}

func (c *client) GroupOffsets(group, topic string, partitions []int32) (map[int32]int64, error) {
	offsets := map[int32]int64{}
	return offsets, c.admin(func(admin sarama.ClusterAdmin) error {
		found, err := admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: partitions})
		if err != nil {
			return err
		}
		for p, block := range found.Blocks[topic] {
			if block.Offset >= 0 {
				offsets[p] = block.Offset
			}
		}
		return nil
	})
}

func (c *client) SetGroupOffset(group, topic string, partition int32, offset int64) error {
	return c.admin(func(admin sarama.ClusterAdmin) error {
		at := map[string]map[int32]sarama.OffsetAndMetadata{topic: {partition: {Offset: offset, LeaderEpoch: -1}}}
		_, err := admin.AlterConsumerGroupOffsets(group, at, nil)
		return err
	})
}

func (c *client) DeleteGroupOffset(group, topic string, partition int32) error {
	return c.admin(func(admin sarama.ClusterAdmin) error { return admin.DeleteConsumerGroupOffset(group, topic, partition) })
}

func (c *client) DeleteGroup(group string) error {
	return c.admin(func(admin sarama.ClusterAdmin) error { return admin.DeleteConsumerGroup(group) })
}

func (c *client) Cluster() (found suite.Cluster, err error) {
	err = c.admin(func(admin sarama.ClusterAdmin) error {
		brokers, controller, err := admin.DescribeCluster()
		// The library does not report the cluster id.
		found.ID, found.Controller = "unsaid", controller
		for _, broker := range brokers {
			found.Nodes = append(found.Nodes, broker.ID())
		}
		return err
	})
	return found, err
}

func (c *client) LogBytes(topic string) (bytes int64, err error) {
	err = c.admin(func(admin sarama.ClusterAdmin) error {
		brokers, _, err := admin.DescribeCluster()
		if err != nil {
			return err
		}
		found, err := admin.DescribeLogDirs([]int32{brokers[0].ID()})
		for _, dirs := range found {
			for _, dir := range dirs {
				for _, each := range dir.Topics {
					for _, partition := range each.Partitions {
						if each.Topic == topic {
							bytes += partition.Size
						}
					}
				}
			}
		}
		return err
	})
	return bytes, err
}
