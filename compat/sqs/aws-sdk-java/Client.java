import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import software.amazon.awssdk.awscore.exception.AwsServiceException;
import software.amazon.awssdk.core.SdkBytes;
import software.amazon.awssdk.core.SdkField;
import software.amazon.awssdk.core.SdkPojo;
import software.amazon.awssdk.core.protocol.MarshallingType;
import software.amazon.awssdk.core.traits.ListTrait;
import software.amazon.awssdk.core.traits.MapTrait;
import software.amazon.awssdk.core.util.VersionInfo;
import software.amazon.awssdk.http.urlconnection.UrlConnectionHttpClient;
import software.amazon.awssdk.services.sqs.SqsClient;
import software.amazon.awssdk.utils.builder.SdkBuilder;

/** Driver of the AWS SDK for Java v2: any call by its name in the service. drivers.py describes the lines. */
public final class Client {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final JsonNodeFactory NODES = JsonNodeFactory.instance;

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        try (SqsClient client = SqsClient.builder().httpClient(UrlConnectionHttpClient.create()).build()) {
            ObjectNode about = NODES.objectNode().put("name", "aws-sdk-java");
            out.println(about.put("version", VersionInfo.SDK_VERSION));
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line; (line = in.readLine()) != null;) {
                JsonNode asked = JSON.readTree(line);
                out.println(JSON.writeValueAsString(answer(client, asked.get("call").asText(), asked.get("with"))));
            }
        }
    }

    private static ObjectNode answer(SqsClient client, String name, JsonNode with) throws Exception {
        ObjectNode answer = NODES.objectNode();
        try {
            String camel = Character.toLowerCase(name.charAt(0)) + name.substring(1);
            Class<?> type = Class.forName("software.amazon.awssdk.services.sqs.model." + name + "Request");
            Method call = SqsClient.class.getMethod(camel, type);
            SdkPojo builder = (SdkPojo) type.getMethod("builder").invoke(null);
            answer.set("ok", plain((SdkPojo) call.invoke(client, filled(builder, with))));
        } catch (ClassNotFoundException e) {
            answer.put("missing", "the library has no " + name);
        } catch (InvocationTargetException e) {
            ObjectNode error = answer.putObject("error");
            ArrayNode names = error.putArray("names");
            if (e.getCause() instanceof AwsServiceException refused && refused.awsErrorDetails() != null) {
                names.add(refused.awsErrorDetails().errorCode());
            }
            names.add(e.getCause().getClass().getSimpleName());
            error.put("message", String.valueOf(e.getCause().getMessage()));
        }
        return answer;
    }

    private static Object filled(SdkPojo builder, JsonNode with) {
        for (SdkField<?> field : builder.sdkFields()) {
            JsonNode value = with.get(field.memberName());
            if (value != null) {
                field.set(builder, value(field, value));
            }
        }
        return ((SdkBuilder<?, ?>) builder).build();
    }

    /** Converts JSON to the value of a member. */
    private static Object value(SdkField<?> field, JsonNode value) {
        MarshallingType<?> type = field.marshallingType();
        if (type == MarshallingType.LIST) {
            SdkField<?> member = field.getTrait(ListTrait.class).memberFieldInfo();
            List<Object> list = new ArrayList<>();
            value.forEach(each -> list.add(value(member, each)));
            return list;
        }
        if (type == MarshallingType.MAP) {
            SdkField<?> member = field.getTrait(MapTrait.class).valueFieldInfo();
            Map<String, Object> map = new LinkedHashMap<>();
            value.properties().forEach(each -> map.put(each.getKey(), value(member, each.getValue())));
            return map;
        }
        if (type == MarshallingType.SDK_POJO) {
            return filled(field.constructor().get(), value);
        }
        if (type == MarshallingType.SDK_BYTES) {
            return SdkBytes.fromByteArray(Base64.getDecoder().decode(value.asText()));
        }
        if (type == MarshallingType.INTEGER) {
            return value.asInt();
        }
        return type == MarshallingType.LONG ? (Object) value.asLong() : value.asText();
    }

    /** Converts a response to JSON, without missing members. */
    private static JsonNode plain(Object value) {
        if (value instanceof SdkPojo pojo) {
            ObjectNode node = NODES.objectNode();
            for (SdkField<?> field : pojo.sdkFields()) {
                Object member = field.getValueOrDefault(pojo);
                boolean isEmpty = member instanceof List<?> list && list.isEmpty()
                        || member instanceof Map<?, ?> map && map.isEmpty();
                if (member != null && !isEmpty) {
                    node.set(field.memberName(), plain(member));
                }
            }
            return node;
        }
        if (value instanceof List<?> list) {
            ArrayNode node = NODES.arrayNode();
            list.forEach(each -> node.add(plain(each)));
            return node;
        }
        if (value instanceof Map<?, ?> map) {
            ObjectNode node = NODES.objectNode();
            map.forEach((key, each) -> node.set(key.toString(), plain(each)));
            return node;
        }
        if (value instanceof SdkBytes bytes) {
            return NODES.textNode(Base64.getEncoder().encodeToString(bytes.asByteArrayUnsafe()));
        }
        return JSON.valueToTree(value);
    }
}
