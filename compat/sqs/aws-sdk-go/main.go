// Driver of the AWS SDK for Go v2: any call by its name in the service.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"

	"compat/driver"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/smithy-go"
)

func main() {
	settings, err := config.LoadDefaultConfig(context.Background())
	if err != nil {
		panic(err)
	}
	client := sqs.NewFromConfig(settings)
	driver.Main("aws-sdk-go", "github.com/aws/aws-sdk-go-v2/service/sqs", func(name string, with json.RawMessage) (any, error) {
		method := reflect.ValueOf(client).MethodByName(name)
		if !method.IsValid() {
			return nil, driver.Missing("the library has no " + name)
		}
		input := reflect.New(method.Type().In(1).Elem())
		if err := json.Unmarshal(with, input.Interface()); err != nil {
			return nil, err
		}
		done := method.Call([]reflect.Value{reflect.ValueOf(context.Background()), input})
		if err, is := done[1].Interface().(error); is {
			return nil, refused(err)
		}
		return plain(done[0])
	})
}

// refused converts an error to the code of the response and the name of the library's type.
func refused(err error) error {
	var answer smithy.APIError
	if !errors.As(err, &answer) {
		return err
	}
	class := reflect.TypeOf(answer).Elem().Name()
	return driver.Refused{Names: []string{answer.ErrorCode(), class}, Message: err.Error()}
}

// plain removes the members that the response did not have, and the metadata of the call.
func plain(value reflect.Value) (any, error) {
	text, err := json.Marshal(value.Interface())
	if err != nil {
		return nil, err
	}
	var tree any
	err = json.Unmarshal(text, &tree)
	return pruned(tree), err
}

func pruned(tree any) any {
	switch tree := tree.(type) {
	case map[string]any:
		for key, value := range tree {
			if value == nil || key == "ResultMetadata" {
				delete(tree, key)
				continue
			}
			tree[key] = pruned(value)
		}
	case []any:
		for i := range tree {
			tree[i] = pruned(tree[i])
		}
	}
	return tree
}
