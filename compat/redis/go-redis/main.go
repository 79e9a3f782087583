// Driver of go-redis: any command. Commands whose replies have a special shape use the library's methods.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strconv"
	"time"

	"compat/driver"

	"github.com/redis/go-redis/v9"
)

var ctx = context.Background()

// values are the arguments of all calls; each call uses some of them.
type values struct {
	Args               []string   `json:"args"`
	Commands           [][]string `json:"commands"`
	Keys               []string   `json:"keys"`
	Rival              []string   `json:"rival"`
	Match              string     `json:"match"`
	Count              int        `json:"count"`
	Protocol           int        `json:"protocol"`
	DB                 int        `json:"db"`
	Name               string     `json:"name"`
	Channels, Patterns []string
}

type client struct {
	first, redis *redis.Client
	listener     *redis.PubSub
}

func main() {
	first := connection(values{Protocol: 2})
	c := &client{first: first, redis: first}
	driver.Main("go-redis", "github.com/redis/go-redis/v9", func(name string, with json.RawMessage) (any, error) {
		var v values
		if err := json.Unmarshal(with, &v); err != nil {
			return nil, err
		}
		answer, err := c.call(name, v)
		if errors.Is(err, redis.Nil) {
			return map[string]any{"value": nil}, nil
		}
		return map[string]any{"value": plain(answer)}, err
	})
}

func connection(v values) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: os.Getenv("COMPAT_REDIS"), Protocol: v.Protocol, DB: v.DB, ClientName: v.Name,
		// One connection, because scenarios query its id. The suite ends commands that block.
		PoolSize: 1, ReadTimeout: -1,
	})
}

func (c *client) call(name string, v values) (any, error) {
	switch name {
	case "pipeline":
		return answers(c.redis.Pipelined(ctx, filled(v.Commands)))
	case "transaction":
		return answers(c.redis.TxPipelined(ctx, filled(v.Commands)))
	case "watched":
		return c.watched(v)
	case "scan":
		found := []string{}
		all := c.redis.Scan(ctx, 0, latin(v.Match), int64(v.Count)).Iterator()
		for all.Next(ctx) {
			found = append(found, all.Val())
		}
		return found, all.Err()
	case "connect":
		c.redis = connection(v)
		return nil, nil
	case "reconnects":
		return nil, nil
	case "subscribe":
		return nil, c.subscribe(v)
	case "messages":
		found := []any{}
		for range v.Count {
			message, err := c.listener.ReceiveMessage(ctx)
			if err != nil {
				return nil, err
			}
			var pattern any
			if message.Pattern != "" {
				pattern = message.Pattern
			}
			found = append(found, []any{message.Channel, message.Payload, pattern})
		}
		return found, nil
	case "reset":
		return nil, c.reset()
	}
	return c.command(name, latins(v.Args))
}

func (c *client) watched(v values) (any, error) {
	var found any
	err := c.redis.Watch(ctx, func(tx *redis.Tx) (err error) {
		if v.Rival != nil {
			other := connection(values{Protocol: 2})
			defer other.Close()
			if err := other.Do(ctx, words(v.Rival)...).Err(); err != nil {
				return err
			}
		}
		found, err = answers(tx.TxPipelined(ctx, filled(v.Commands)))
		return err
	}, latins(v.Keys)...)
	if errors.Is(err, redis.TxFailedErr) {
		return nil, nil
	}
	return found, err
}

func (c *client) subscribe(v values) error {
	c.listener = c.redis.Subscribe(ctx)
	if len(v.Channels) > 0 {
		if err := c.listener.Subscribe(ctx, latins(v.Channels)...); err != nil {
			return err
		}
	}
	if len(v.Patterns) > 0 {
		if err := c.listener.PSubscribe(ctx, latins(v.Patterns)...); err != nil {
			return err
		}
	}
	for range len(v.Channels) + len(v.Patterns) {
		if _, err := c.listener.Receive(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (c *client) reset() error {
	if c.listener != nil {
		if err := c.listener.Close(); err != nil {
			return err
		}
		c.listener = nil
	}
	if c.redis != c.first {
		if err := c.redis.Close(); err != nil {
			return err
		}
		c.redis = c.first
	}
	return nil
}

// command calls the library's method if the words have the form of its arguments.
func (c *client) command(name string, args []string) (any, error) {
	r := c.redis
	switch form := fmt.Sprint(name, len(args)); form {
	case "GET1":
		return r.Get(ctx, args[0]).Result()
	case "HGETALL1":
		return r.HGetAll(ctx, args[0]).Result()
	case "SMEMBERS1":
		return r.SMembers(ctx, args[0]).Result()
	case "ZSCORE2":
		return r.ZScore(ctx, args[0], args[1]).Result()
	case "ZRANGE4":
		found, err := r.ZRangeWithScores(ctx, args[0], number(args[1]), number(args[2])).Result()
		return scored(found), err
	case "ZPOPMAX2":
		found, err := r.ZPopMax(ctx, args[0], number(args[1])).Result()
		return scored(found), err
	case "BZPOPMIN2":
		found, err := r.BZPopMin(ctx, seconds(args[1]), args[0]).Result()
		if err != nil {
			return nil, err
		}
		return []any{found.Key, found.Member, found.Score}, nil
	case "XPENDING2":
		found, err := r.XPending(ctx, args[0], args[1]).Result()
		if err != nil {
			return nil, err
		}
		consumers := []any{}
		for name, count := range found.Consumers {
			consumers = append(consumers, []any{name, count})
		}
		return []any{found.Count, found.Lower, found.Higher, consumers}, nil
	case "XRANGE3":
		found, err := r.XRange(ctx, args[0], args[1], args[2]).Result()
		return entries(found), err
	}
	switch name {
	case "BLPOP":
		return r.BLPop(ctx, seconds(args[len(args)-1]), args[:len(args)-1]...).Result()
	case "XADD":
		return r.XAdd(ctx, &redis.XAddArgs{Stream: args[0], ID: args[1], Values: args[2:]}).Result()
	case "XREAD":
		count, block, from := reading(args)
		return streams(r.XRead(ctx, &redis.XReadArgs{Streams: from, Count: count, Block: block}).Result())
	case "XREADGROUP":
		count, block, from := reading(args)
		return streams(r.XReadGroup(ctx, &redis.XReadGroupArgs{
			Group: args[1], Consumer: args[2], Streams: from, Count: count, Block: block,
		}).Result())
	}
	return r.Do(ctx, append([]any{name}, anys(args)...)...).Result()
}

// reading returns the options before STREAMS, and the words after it. A negative time does not block.
func reading(args []string) (count int64, block time.Duration, from []string) {
	block = -1
	at := slices.Index(args, "STREAMS")
	if place := slices.Index(args[:at], "COUNT"); place >= 0 {
		count = number(args[place+1])
	}
	if place := slices.Index(args[:at], "BLOCK"); place >= 0 {
		block = time.Duration(number(args[place+1])) * time.Millisecond
	}
	return count, block, args[at+1:]
}

func streams(all []redis.XStream, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	found := []any{}
	for _, stream := range all {
		found = append(found, []any{stream.Stream, entries(stream.Messages)})
	}
	return found, nil
}

func entries(messages []redis.XMessage) any {
	found := []any{}
	for _, message := range messages {
		found = append(found, []any{message.ID, message.Values})
	}
	return found
}

func scored(members []redis.Z) any {
	found := []any{}
	for _, each := range members {
		found = append(found, []any{each.Member, each.Score})
	}
	return found
}

func number(text string) int64 {
	number, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic(err)
	}
	return number
}

func seconds(text string) time.Duration {
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil {
		panic(err)
	}
	return time.Duration(seconds * float64(time.Second))
}

func filled(commands [][]string) func(redis.Pipeliner) error {
	return func(pipeline redis.Pipeliner) error {
		for _, command := range commands {
			pipeline.Do(ctx, words(command)...)
		}
		return nil
	}
}

// answers has a separate error for each refused command. It returns an error if no command was executed.
func answers(commands []redis.Cmder, err error) (any, error) {
	if errors.Is(err, redis.TxFailedErr) {
		return nil, err
	}
	var refused redis.Error
	if err != nil && (!errors.As(err, &refused) || redis.HasErrorPrefix(err, "EXECABORT")) {
		return nil, err
	}
	found := []any{}
	for _, each := range commands {
		value, err := each.(*redis.Cmd).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			found = append(found, map[string]string{"error": err.Error()})
		} else {
			found = append(found, value)
		}
	}
	return found, nil
}

// latin converts text to bytes. Each character is one byte.
func latin(text string) string {
	bytes := []byte{}
	for _, char := range text {
		bytes = append(bytes, byte(char))
	}
	return string(bytes)
}

func latins(texts []string) []string {
	found := []string{}
	for _, text := range texts {
		found = append(found, latin(text))
	}
	return found
}

func anys(texts []string) []any {
	found := []any{}
	for _, text := range texts {
		found = append(found, text)
	}
	return found
}

func words(texts []string) []any { return anys(latins(texts)) }

// plain converts a value to types of JSON. In its texts each character is one byte.
func plain(value any) any {
	switch value := reflect.ValueOf(value); value.Kind() {
	case reflect.String:
		runes := []rune{}
		for _, each := range []byte(value.String()) {
			runes = append(runes, rune(each))
		}
		return string(runes)
	case reflect.Slice:
		found := []any{}
		for at := range value.Len() {
			found = append(found, plain(value.Index(at).Interface()))
		}
		return found
	case reflect.Map:
		found := map[string]any{}
		for _, key := range value.MapKeys() {
			found[plain(key.Interface()).(string)] = plain(value.MapIndex(key).Interface())
		}
		return found
	case reflect.Float64:
		if math.IsInf(value.Float(), 0) {
			return fmt.Sprint(value.Float())
		}
	case reflect.Invalid:
		return nil
	}
	return value
}
