// Driver of Google's Go client for Pub/Sub: any call by its name in the service, the publisher and the subscriber.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"

	"compat/driver"

	"cloud.google.com/go/iam/apiv1/iampb"
	"cloud.google.com/go/pubsub/v2"
	vkit "cloud.google.com/go/pubsub/v2/apiv1"
	"google.golang.org/api/iterator"
	"google.golang.org/api/option"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

const limit = 50 * time.Second

type client struct {
	*pubsub.Client
	schemas *vkit.SchemaClient
	conn    *grpc.ClientConn
	// publishers are the publishers by topic. Those with ordering have separate entries.
	publishers map[string]*pubsub.Publisher
	streams    map[string]*stream
}

// stream is a subscriber, with its received messages that are not settled.
type stream struct {
	arrived chan held
	held    map[string]held
	cancel  context.CancelFunc
	ended   chan struct{}
	err     error
}

type held struct {
	*pubsub.Message
	// done is closed when the message is settled: until then the library treats the message as in progress.
	done chan struct{}
}

func main() {
	ctx := context.Background()
	c := &client{publishers: map[string]*pubsub.Publisher{}, streams: map[string]*stream{}}
	c.Client = got(pubsub.NewClient(ctx, os.Getenv("PUBSUB_PROJECT_ID")))
	c.conn = got(grpc.NewClient(os.Getenv("PUBSUB_EMULATOR_HOST"), grpc.WithTransportCredentials(insecure.NewCredentials())))
	// The client of this service is the only one that ignores the variable for an emulator.
	c.schemas = got(vkit.NewSchemaClient(ctx, option.WithGRPCConn(c.conn)))
	driver.Main("pubsub-go", "cloud.google.com/go/pubsub/v2", c.call)
}

func got[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func (c *client) call(name string, with json.RawMessage) (any, error) {
	var w values
	if err := json.Unmarshal(with, &w); err != nil && name[0] >= 'a' {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var done any
	var err error
	switch name {
	case "publish":
		done, err = c.publish(ctx, w)
	case "open":
		done = c.open(w)
	case "take":
		done, err = c.streams[w.Stream].take(w.Count, time.Duration(w.WaitMs)*time.Millisecond)
	case "settle":
		done, err = c.streams[w.Stream].settle(ctx, w.Handle, w.How)
	case "close":
		c.streams[w.Stream].cancel()
		<-c.streams[w.Stream].ended
		done = struct{}{}
	default:
		done, err = c.unary(ctx, name, with)
	}
	return done, named(err)
}

type values struct {
	Topic, Subscription, Stream, Handle, How string
	Ordered                                  bool
	Messages                                 []struct {
		Data        []byte
		Attributes  map[string]string
		OrderingKey string
	}
	Count       int
	WaitMs      int `json:"wait_ms"`
	MaxMessages int `json:"max_messages"`
}

// named adds Google's name of a status to an error.
func named(err error) error {
	var missing driver.Missing
	if err == nil || errors.As(err, &missing) {
		return err
	}
	code := code.Code(status.Code(err)).String()
	return driver.Refused{Names: []string{code}, Message: err.Error()}
}

func (c *client) unary(ctx context.Context, name string, with json.RawMessage) (any, error) {
	if strings.HasSuffix(name, "IamPolicy") || strings.HasSuffix(name, "IamPermissions") {
		return send(ctx, reflect.ValueOf(iampb.NewIAMPolicyClient(c.conn)).MethodByName(name), with)
	}
	for _, owner := range []any{c.TopicAdminClient, c.SubscriptionAdminClient, c.schemas} {
		if method := reflect.ValueOf(owner).MethodByName(name); method.IsValid() {
			return send(ctx, method, with)
		}
	}
	return nil, driver.Missing("the library has no " + name)
}

// send sends the values as a request, and returns the response: nothing, a message, or the items of all pages.
func send(ctx context.Context, method reflect.Value, with json.RawMessage) (any, error) {
	request := reflect.New(method.Type().In(1).Elem())
	if err := protojson.Unmarshal(with, request.Interface().(proto.Message)); err != nil {
		return nil, err
	}
	done := method.Call([]reflect.Value{reflect.ValueOf(ctx), request})
	if len(done) == 2 || method.Type().Out(0).Name() == "error" {
		if err, is := done[len(done)-1].Interface().(error); is {
			return nil, err
		}
	}
	if method.Type().Out(0).Name() == "error" {
		return struct{}{}, nil
	}
	if message, is := done[0].Interface().(proto.Message); is {
		return plain(message)
	}
	items := []any{}
	for {
		next := done[0].MethodByName("Next").Call(nil)
		if err, is := next[1].Interface().(error); is {
			if errors.Is(err, iterator.Done) {
				return map[string]any{"items": items}, nil
			}
			return nil, err
		}
		item := next[0].Interface()
		if message, is := item.(proto.Message); is {
			item = got(plain(message))
		}
		items = append(items, item)
	}
}

func plain(message proto.Message) (any, error) {
	text, err := protojson.Marshal(message)
	return json.RawMessage(text), err
}

func (c *client) publish(ctx context.Context, w values) (any, error) {
	key := w.Topic + strconv.FormatBool(w.Ordered)
	publisher := c.publishers[key]
	if publisher == nil {
		publisher = c.Publisher(w.Topic)
		publisher.EnableMessageOrdering = w.Ordered
		c.publishers[key] = publisher
	}
	var results []*pubsub.PublishResult
	for _, m := range w.Messages {
		message := pubsub.Message{Data: m.Data, Attributes: m.Attributes, OrderingKey: m.OrderingKey}
		results = append(results, publisher.Publish(ctx, &message))
	}
	ids := []string{}
	for _, result := range results {
		id, err := result.Get(ctx)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return map[string]any{"messageIds": ids}, nil
}

func (c *client) open(w values) any {
	ctx, cancel := context.WithCancel(context.Background())
	s := &stream{arrived: make(chan held, 10_000), held: map[string]held{}, cancel: cancel, ended: make(chan struct{})}
	subscriber := c.Subscriber(w.Subscription)
	if w.MaxMessages > 0 {
		subscriber.ReceiveSettings.MaxOutstandingMessages = w.MaxMessages
	}
	go func() {
		defer close(s.ended)
		s.err = subscriber.Receive(ctx, func(ctx context.Context, message *pubsub.Message) {
			one := held{message, make(chan struct{})}
			s.arrived <- one
			select {
			case <-one.done:
			case <-ctx.Done():
				message.Nack()
			}
		})
	}()
	name := strconv.Itoa(len(c.streams))
	c.streams[name] = s
	return map[string]string{"stream": name}
}

func (s *stream) take(count int, wait time.Duration) (any, error) {
	found := []any{}
	end := time.After(wait)
	for len(found) < count {
		select {
		case one := <-s.arrived:
			handle := strconv.Itoa(len(s.held))
			s.held[handle] = one
			message := map[string]any{
				"handle": handle, "data": one.Data, "attributes": one.Attributes, "messageId": one.ID, "orderingKey": one.OrderingKey,
			}
			if one.DeliveryAttempt != nil {
				message["deliveryAttempt"] = *one.DeliveryAttempt
			}
			found = append(found, message)
			continue
		case <-s.ended:
			if s.err != nil {
				return nil, s.err
			}
		case <-end:
		}
		break
	}
	return map[string]any{"messages": found}, nil
}

func (s *stream) settle(ctx context.Context, handle, how string) (any, error) {
	one := s.held[handle]
	defer close(one.done)
	var result *pubsub.AckResult
	switch how {
	case "ack":
		one.Ack()
		return struct{}{}, nil
	case "nack":
		one.Nack()
		return struct{}{}, nil
	case "ack_confirmed":
		result = one.AckWithResult()
	default:
		result = one.NackWithResult()
	}
	state, err := result.Get(ctx)
	names := map[pubsub.AcknowledgeStatus]string{
		pubsub.AcknowledgeStatusSuccess: "SUCCESS", pubsub.AcknowledgeStatusInvalidAckID: "INVALID_ACK_ID",
		pubsub.AcknowledgeStatusPermissionDenied:   "PERMISSION_DENIED",
		pubsub.AcknowledgeStatusFailedPrecondition: "FAILED_PRECONDITION", pubsub.AcknowledgeStatusOther: "OTHER",
	}
	return map[string]string{"result": names[state]}, err
}
