package main

import (
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/microlet/microlet/compose/tools/traces/span"
)

// lines are the spans of a request, a line of JSON for each.
func lines(resources []*tracepb.ResourceSpans) ([]byte, error) {
	var text []byte
	for _, of := range resources {
		resource := texts(of.GetResource().GetAttributes())
		for _, in := range of.GetScopeSpans() {
			for _, s := range in.GetSpans() {
				line, err := json.Marshal(one(s, resource))
				if err != nil {
					return nil, err
				}
				text = append(append(text, line...), '\n')
			}
		}
	}
	return text, nil
}

func one(s *tracepb.Span, resource map[string]string) span.Span {
	line := span.Span{
		Service: resource["service.name"], Name: s.GetName(),
		Kind:  strings.ToLower(strings.TrimPrefix(s.GetKind().String(), "SPAN_KIND_")),
		Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()),
		Parent: hex.EncodeToString(s.GetParentSpanId()),
		Start:  time.Unix(0, int64(s.GetStartTimeUnixNano())).UTC(), End: time.Unix(0, int64(s.GetEndTimeUnixNano())).UTC(),
		Attributes: texts(s.GetAttributes()), Resource: resource,
	}
	if s.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR {
		if line.Error = s.GetStatus().GetMessage(); line.Error == "" {
			line.Error = "unknown"
		}
	}
	return line
}

// texts are attributes as text. Values that are not simple are JSON.
func texts(attributes []*commonpb.KeyValue) map[string]string {
	all := map[string]string{}
	for _, a := range attributes {
		switch v := a.GetValue().GetValue().(type) {
		case *commonpb.AnyValue_StringValue:
			all[a.GetKey()] = v.StringValue
		case *commonpb.AnyValue_IntValue:
			all[a.GetKey()] = strconv.FormatInt(v.IntValue, 10)
		case *commonpb.AnyValue_BoolValue:
			all[a.GetKey()] = strconv.FormatBool(v.BoolValue)
		case *commonpb.AnyValue_DoubleValue:
			all[a.GetKey()] = strconv.FormatFloat(v.DoubleValue, 'g', -1, 64)
		default:
			all[a.GetKey()] = protojson.Format(a.GetValue())
		}
	}
	return all
}
