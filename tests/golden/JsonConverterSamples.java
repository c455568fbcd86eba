// Prints what Kafka Connect's JsonConverter writes for single values: the lines of json_converter.tsv.
// Needs connect-json, connect-api, kafka-clients, Jackson and slf4j-api on the class path, Java 19 or newer:
//   java -cp <jars> JsonConverterSamples.java > json_converter.tsv
// A line is: kind, input (bits, hex of UTF-8, or unscaled value e scale), the converter's text.

import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.kafka.connect.data.*;
import org.apache.kafka.connect.json.JsonConverter;

public class JsonConverterSamples {
    static final JsonConverter BASE64 = converter("BASE64");
    static final JsonConverter NUMERIC = converter("NUMERIC");
    static final Random RANDOM = new Random(7);
    static final StringBuilder OUT = new StringBuilder();

    static JsonConverter converter(String decimals) {
        JsonConverter made = new JsonConverter();
        made.configure(Map.of("schemas.enable", "false", "decimal.format", decimals), false);
        return made;
    }

    static void add(String kind, String input, Schema schema, Object value) {
        byte[] bytes = (kind.equals("numeric") ? NUMERIC : BASE64).fromConnectData("t", schema, value);
        OUT.append(kind).append('\t').append(input).append('\t').append(new String(bytes, StandardCharsets.UTF_8)).append('\n');
    }

    static void add(double value) {
        add("double", Long.toHexString(Double.doubleToLongBits(value)), Schema.FLOAT64_SCHEMA, value);
    }

    static void add(float value) {
        add("float", Integer.toHexString(Float.floatToIntBits(value)), Schema.FLOAT32_SCHEMA, value);
    }

    static void add(String value) {
        add("string", HexFormat.of().formatHex(value.getBytes(StandardCharsets.UTF_8)), Schema.STRING_SCHEMA, value);
    }

    static void add(BigInteger unscaled, int scale) {
        BigDecimal value = new BigDecimal(unscaled, scale);
        add("base64", unscaled + "e" + scale, Decimal.schema(scale), value);
        add("numeric", unscaled + "e" + scale, Decimal.schema(scale), value);
    }

    public static void main(String[] arguments) {
        double[] doubles = {0.0, -0.0, 1.0, 0.1, -2.5, 1e7, 9999999.999999998, 0.001, 0.0009999999999999998, 1e10, 1e16, 1e22, 1e23, 2e23,
            9.007199254740993E15, 4.9e-324, 1e-323, 2.5E-323, 5e-323, 1e-322, Double.MIN_NORMAL, Double.MAX_VALUE, Double.NaN,
            Double.POSITIVE_INFINITY, Double.NEGATIVE_INFINITY, 1.2345678901234568e39, 8.41E21, 2.0E-3, 123456789.125};
        for (double value : doubles) add(value);
        for (int i = 0; i < 200; i++) add(Double.longBitsToDouble(RANDOM.nextLong()));
        for (int i = 0; i < 50; i++) add(Math.round(RANDOM.nextDouble() * 1e12) / 100.0);
        for (int i = 0; i < 50; i++) add(Double.longBitsToDouble(1 + RANDOM.nextInt(300)));
        float[] floats = {0f, -0f, 1f, 0.1f, 1e7f, 9999999f, 0.001f, 0.00099999f, 1e10f, 3.4028235e38f, 1.4e-45f, 7e-45f, 1.17549435e-38f,
            Float.NaN, Float.POSITIVE_INFINITY, Float.NEGATIVE_INFINITY, 16777216f, 3.3554432e7f, 8.589973e9f};
        for (float value : floats) add(value);
        for (int i = 0; i < 200; i++) add(Float.intBitsToFloat(RANDOM.nextInt()));
        for (int i = 0; i < 50; i++) add(Float.intBitsToFloat(1 + RANDOM.nextInt(300)));
        for (int i = 0; i < 0xA1; i++) add("a" + (char) i + "b");
        for (String value : List.of("", "é☃", "😀", "x😀y\uDBFF\uDFFF", "\u2028\u2029\uFEFF\uFFFF\uE000", "</script>", "a/b\\c\"d",
            "p".repeat(1999) + "😀\u0000é")) add(value);
        String[] unscaled = {"0", "1", "-1", "127", "128", "-128", "-129", "32767", "32768", "-32768", "-32769", "1500",
            "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
            "99999999999999999999999999999999999999", "-99999999999999999999999999999999999999",
            "12345678901234567890123456789012345678901234567890"};
        for (String digits : unscaled) for (int scale : new int[] {0, 2, 7, 10}) add(new BigInteger(digits), scale);
        for (int i = 0; i < 150; i++) {
            BigInteger value = new BigInteger(RANDOM.nextInt(120) + 1, RANDOM);
            add(RANDOM.nextBoolean() ? value.negate() : value, RANDOM.nextInt(12));
        }
        System.out.print(OUT);
    }
}
